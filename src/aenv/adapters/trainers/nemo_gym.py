"""A resources server for NeMo Gym: a session is an episode, and each tool of the environment is a route."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeFailed, OpenEpisode, at_home, score_of, shared_source
from aenv.errors import AEnvError

base = framework("nemo_gym.base_resources_server", "nemo-gym")
server_utils = framework("nemo_gym.server_utils", "nemo-gym")
fastapi = framework("fastapi", "nemo-gym")
Request = fastapi.Request


class EnvironmentResourcesServerConfig(base.BaseResourcesServerConfig):  # type: ignore[misc, name-defined]
    """Arguments of `EpisodeSource`: the environment, and ``options`` for the others."""

    environment: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class EnvironmentResourcesServer(base.SimpleResourcesServer):  # type: ignore[misc, name-defined]
    """Episodes of an environment for NeMo Gym's agents.

    ``/seed_session`` starts an instance: for the task that the row names as ``task_id``, or a random one.
    ``POST /TOOL`` calls a tool; its answer is the tool's text. ``/verify`` ends the episode and returns the reward. An
    episode without a reward is an HTTP error 503 of ``/verify``.
    """

    config: EnvironmentResourcesServerConfig

    def setup_webserver(self) -> Any:
        """Return the application, with a route for tools."""
        app = super().setup_webserver()
        object.__setattr__(self, "_episodes", {})
        app.post("/{tool}")(self.call_tool)
        return app

    async def seed_session(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:  # type: ignore[valid-type]
        """Start the episode of a session."""
        source = shared_source({"environment": self.config.environment, **self.config.options})
        named = body.get("task_id", (body.get("verifier_metadata") or {}).get("task_id"))
        before: OpenEpisode | None = self._open.pop(_session(request), None)
        if before is not None:
            await at_home(before.cancel())
        episode = await at_home(source.open(None if named is None else str(named)))
        self._open[_session(request)] = episode
        return {"instruction": episode.instruction, "tools": episode.tools}

    async def call_tool(self, tool: str, request: Request) -> Any:  # type: ignore[valid-type]
        """Call a tool of the session's episode."""
        episode = self._episode(request)
        arguments = (await request.body()).decode() or "{}"  # type: ignore[attr-defined]
        try:
            text = (await at_home(episode.call(tool, arguments))).text
        except EpisodeFailed as error:
            raise fastapi.HTTPException(503, error.message) from error
        except AEnvError as error:  # a budget is used up, or the agent has ended its own instance
            text = f"Error: {error.message}"
        return fastapi.Response(text, media_type="text/plain")

    async def verify(self, request: Request, body: base.BaseVerifyRequest) -> Any:  # type: ignore[name-defined, valid-type]
        """End the session's episode, and return its reward."""
        episode = self._episode(request)
        del self._open[_session(request)]
        try:
            reward = score_of(await at_home(episode.finish()))
        except EpisodeFailed as error:
            raise fastapi.HTTPException(503, error.message) from error
        return base.BaseVerifyResponse(**body.model_dump(), reward=reward)

    @property
    def _open(self) -> dict[str, OpenEpisode]:
        return self._episodes  # type: ignore[no-any-return]

    def _episode(self, request: Any) -> OpenEpisode:
        found = self._open.get(_session(request))
        if found is None:
            raise fastapi.HTTPException(409, "the session has no episode; call /seed_session first")
        return found


def _session(request: Any) -> str:
    return str(request.session[server_utils.SESSION_ID_KEY])
