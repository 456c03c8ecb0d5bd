"""The agent loop for verl, in verl's own classes. Its trainer needs GPUs; a script stands for its model servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.tiny_model import call, tokenizer
from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("verl.experimental.agent_loop", "verl")

from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed  # noqa: E402
from aenv.adapters.trainers.verl import EnvironmentAgentLoop  # noqa: E402

ROLLOUT = {
    "prompt_length": 2048,
    "response_length": 2048,
    "full_determinism": False,
    "multi_turn": {
        "max_user_turns": 8,
        "max_assistant_turns": 8,
        "max_parallel_calls": 1,
        "max_tool_response_length": 256,
        "tool_response_truncate_side": "right",
        "format": "hermes",
    },
}


class Servers:
    """Stands for verl's model servers: answers by a script."""

    def __init__(self, words: Any, *texts: str) -> None:
        self._words, self._texts = words, list(texts)
        self.prompts: list[str] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], **more: Any) -> Any:
        self.prompts.append(self._words.decode(prompt_ids))
        tokens = self._words.encode(self._texts.pop(0) + "<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens))


def run(store: Path, *texts: str, **row: Any) -> tuple[Any, Servers]:
    words = tokenizer()
    servers = Servers(words, *texts)
    config = DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}}))

    async def main() -> Any:
        loop = EnvironmentAgentLoop(
            trainer_config=config,
            server_manager=servers,
            tokenizer=words,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(OmegaConf.create({})),
            environment=TREASURE,
            options={"store": str(store)},
        )
        return await loop.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": ""}], **row)

    return asyncio.run(main()), servers


def test_a_trajectory_has_the_tokens_the_mask_and_the_environments_reward(store: Path) -> None:
    output, servers = run(store, call("right"), "I am there.", extra_info={"task_id": "right"})
    assert output.reward_score == 1.0
    assert '"name": "move"' in servers.prompts[0]
    assert "right end" in servers.prompts[0]
    assert '"place":6' in servers.prompts[1]
    words = tokenizer()
    pairs = list(zip(output.response_ids, output.response_mask, strict=True))
    assert words.decode([token for token, own in pairs if own]).count("<|im_end|>") == 2
    read = words.decode([token for token, own in pairs if not own])
    assert '"place":6' in read
    assert "tool_call" not in read
    assert len(output.response_logprobs) == len(output.response_ids)
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_a_wrong_call_is_read_by_the_model_and_a_wrong_end_gets_no_reward(store: Path) -> None:
    output, servers = run(store, call("right", 9), call("right"), "There.", task_id="left")
    assert "steps must be 1 to 7" in servers.prompts[1]
    assert output.reward_score == 0.0


def test_a_lost_instance_is_tried_again_and_then_raises(store: Path) -> None:
    with losing_instances(), pytest.raises(EpisodeFailed):
        run(store, *[call("left")] * 3, task_id="left")
    assert [outcome for _, outcome, _ in outcomes(store)] == ["infra"] * 3


def test_verl_knows_the_loop_by_its_name() -> None:
    assert _agent_loop_registry["aenv"]["_target_"] == "aenv.adapters.trainers.verl.EnvironmentAgentLoop"
