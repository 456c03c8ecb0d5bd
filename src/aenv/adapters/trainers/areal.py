"""A workflow for AReaL: ``run(data, **extra)`` plays one episode with AReaL's model endpoint, and returns the reward.

AReaL takes any object with such a method, so nothing of it is imported here. It records tokens behind its endpoint. A
failed episode raises, and AReaL rejects its trajectory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from aenv.adapters.trainers.episodes import EpisodeSource, at_home, endpoint, score_of, shared_source
from aenv.errors import UsageError


class EnvironmentWorkflow:
    """Episodes of an environment, as an agent workflow of AReaL.

    Objects can be pickled, as AReaL's mode ``subproc`` wants.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        model: Name of the model in requests.
        sampling: Sampling parameters of the model.
        **options: Other arguments of `EpisodeSource`, such as ``agent``, ``tasks`` or ``limits``, and of `Environment`.

    Example:
        ```python
        trainer.train(workflow="aenv.adapters.trainers.areal.EnvironmentWorkflow",
                      workflow_kwargs={"environment": "tau2-env@1.0.0"})
        ```
    """

    def __init__(
        self,
        environment: str = "",
        *,
        model: str = "default",
        sampling: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._options = {"environment": environment, **options}
        self._model = model
        self._sampling = dict(sampling or {})

    @property
    def source(self) -> EpisodeSource:
        """Tasks and episodes; shared by all workflows with the same arguments in this process."""
        return shared_source(self._options)

    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        """Play the task that a row names as ``task_id``, or describes, and return its reward.

        ``extra`` has ``base_url`` and ``api_key``; without them, the endpoint is that of OPENAI_BASE_URL and
        OPENAI_API_KEY, as in AReaL's mode ``subproc``.

        Raises:
            EpisodeFailed: the episode has no reward, for a reason that is not the agent's.
        """
        url = extra.get("base_url") or os.environ.get("OPENAI_BASE_URL")
        if not url:
            raise UsageError("there is no model: neither base_url nor OPENAI_BASE_URL is given")
        model = endpoint(url, model=self._model, key=extra.get("api_key") or os.environ.get("OPENAI_API_KEY"))
        return score_of(await at_home(self.source.play(data, model=model, sampling=self._sampling)))
