"""Tools for verl in verl's own tool loop, and as a loop of one's own calls them."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.tiny_model import call, tokenizer
from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes
from tests.waiting import wait_while

needs("verl.experimental.agent_loop", "verl")

from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap  # noqa: E402
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop  # noqa: E402
from verl.tools.tool_registry import initialize_tools_from_config  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed  # noqa: E402
from aenv.adapters.trainers.verl_tools import verl_tools_config  # noqa: E402
from tests.trainers.test_verl import ROLLOUT, Servers  # noqa: E402


def tools(store: Path, folder: Path) -> list[Any]:
    """Return the tools as verl reads them from the file that its configuration names."""
    file = folder / "tools.yaml"
    file.write_text(json.dumps(verl_tools_config(TREASURE, store=str(store))))
    return list(initialize_tools_from_config(str(file)))


def test_verls_tool_loop_keeps_the_state_of_a_trajectory_and_gets_the_reward(store: Path, tmp_path: Path) -> None:
    words = tokenizer()
    servers = Servers(words, call("right", 1), call("right", 2), "I am there.")
    config = DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}}))
    made = tools(store, tmp_path)

    async def main() -> Any:
        loop = ToolAgentLoop(
            trainer_config=config, server_manager=servers, tokenizer=words, processor=None, dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(OmegaConf.create({})), tools=ToolListWrap(made),
        )  # fmt: skip
        row = {"tools_kwargs": {"move": {"create_kwargs": {"task_id": "right"}}}}
        return await loop.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": "Go right."}], **row)

    output = asyncio.run(main())
    assert output.extra_fields["tool_rewards"] == [0.0, 1.0]
    assert '"place":6' in servers.prompts[2]
    assert [each for each in outcomes(store) if each[1] == "ok"] == [("right", "ok", 1.0)]


def test_a_trajectory_that_ends_early_releases_its_instance(store: Path, tmp_path: Path) -> None:
    class Trajectory:
        """Stands for the data of verl's loop."""

    (tool,) = tools(store, tmp_path)

    async def main() -> None:
        agent = Trajectory()
        instance, _ = await tool.create(create_kwargs={"task_id": "left"})
        await tool.execute(instance, {"direction": "left"}, agent_data=agent)
        await tool.release(instance)

    asyncio.run(main())
    gc.collect()
    over = [("left", "cancelled", None)] * 2  # the first one has listed the tools
    wait_while(lambda: outcomes(store) != over, "the episode goes on")


def test_a_tool_is_created_executed_graded_and_released(store: Path, tmp_path: Path) -> None:
    (tool,) = tools(store, tmp_path)

    async def main() -> float:
        instance, _ = await tool.create(task_id="left")
        answer, reward, _ = await tool.execute(instance, {"direction": "left", "steps": 2})
        assert (json.loads(answer.text)["place"], reward) == (1, 0.0)
        reward = await tool.calc_reward(instance)
        await tool.release(instance)
        return float(reward)

    assert asyncio.run(main()) == 0.0
    assert [each for each in outcomes(store) if each[1] == "ok"] == [("left", "ok", 0.0)]


def test_a_lost_instance_raises_and_is_no_reward(store: Path, tmp_path: Path) -> None:
    (tool,) = tools(store, tmp_path)

    async def main() -> None:
        instance, _ = await tool.create(task_id="left")
        with losing_instances(), pytest.raises(EpisodeFailed):
            await tool.execute(instance, {"direction": "left"})
        with pytest.raises(EpisodeFailed):
            await tool.calc_reward(instance)

    asyncio.run(main())
