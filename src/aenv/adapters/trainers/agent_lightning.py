"""An agent for Agent Lightning's local runner: it plays one rollout in an environment, and reports the reward.

Agent Lightning starts a process for each rollout. Its variables name the model endpoint and where to report to; the
rollout's ``env_map`` adds the environment and the task.
"""

from __future__ import annotations

import json
import os
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeSource, at_home, endpoint, score_of
from aenv.errors import UsageError


class EnvironmentAgent:
    """Plays a rollout. Name it as ``agent_class`` of a rollout's local config.

    | variable | meaning |
    |---|---|
    | ``AENV_TRAIN_ENVIRONMENT`` | the environment |
    | ``AENV_TRAIN_TASK`` | id of the task, or its row as JSON |
    | ``AENV_TRAIN_OPTIONS`` | other arguments of `EpisodeSource`, as JSON |

    An episode without a reward makes the process fail, and with it the rollout; no reward is reported.

    Example:
        ```python
        RolloutLocalConfig(
            agent_class="aenv.adapters.trainers.agent_lightning:EnvironmentAgent",
            env_map={"AENV_TRAIN_ENVIRONMENT": "tau2-env@1.0.0", "AENV_TRAIN_TASK": "input.task_id"},
        )
        ```
    """

    async def run(self) -> float:
        """Play the rollout that the variables describe, report the reward, and return it."""
        url, events = os.environ.get("AGL_OPENAI_BASE_URL"), os.environ.get("AGL_EVENT_URL")
        if not url or not events:
            raise UsageError("AGL_OPENAI_BASE_URL and AGL_EVENT_URL are not set; Agent Lightning's runner sets them")
        key = os.environ.get("AGL_KEY") or None
        options = json.loads(os.environ.get("AENV_TRAIN_OPTIONS") or "{}")
        source = EpisodeSource(os.environ.get("AENV_TRAIN_ENVIRONMENT", ""), **options)
        try:
            model = endpoint(url, key=key)
            result = await at_home(source.play(_task(os.environ.get("AENV_TRAIN_TASK", "")), model=model))
        finally:
            await at_home(source.close())
        reward = score_of(result)
        event = {"event_type": "reward", "data": {"value": reward, "source": "agent", "message": result.episode}}
        client = framework("agentlightning.client", "agentlightning")
        async with client.AgentLightningAsyncClient(key=key) as connection:
            (await connection.post(events, json=event)).raise_for_status()
        return reward


def _task(text: str) -> Any:
    """Return the task that a variable names: a row, an id, or any."""
    try:
        data = json.loads(text)
    except ValueError:
        return text or None
    return data if isinstance(data, dict) else text
