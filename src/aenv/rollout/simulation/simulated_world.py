"""An instance some or all of whose tools are answered by a model. Everything else is the real instance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any

from aenv.authoring.content import to_content
from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError
from aenv.rollout.simulation.perturbations import UNAVAILABLE, Perturbations, part_of
from aenv.rollout.simulation.simulated_state import SimulatedState
from aenv.rollout.simulation.tool_simulator import Simulated, ToolSimulator, check_schema
from aenv.rollout.world import World, WorldInFront
from aenv.sdk.qualified_names import bare_name


class SimulatedWorld(WorldInFront):
    """The world of one episode.

    A call with the same arguments gives the same result until something has changed, without asking the model again:
    a world that contradicts itself teaches agents nothing.
    """

    def __init__(
        self,
        world: World,
        simulator: ToolSimulator,
        state: SimulatedState,
        *,
        tools: Collection[str] | None,
        perturbations: Perturbations,
        episode: str,
        note: Callable[..., object],
    ) -> None:
        """``tools``: names of those that are simulated; None: all."""
        super().__init__(world)
        self._simulator = simulator
        self._tools = tools
        self._perturbations: Perturbations | None = perturbations
        self._episode = episode
        self._note = note
        self._specs: dict[str, dict[str, Any]] | None = None
        self._known: dict[str, tuple[int, Simulated]] = {}
        self._one = asyncio.Lock()
        self._number = 0
        self.state = state
        """State of the simulated world."""
        self.failure: AEnvError | None = None
        """The first failure of the simulator. An episode that had one has no reward, whatever its agent did then."""

    def end_agent(self) -> None:
        """Disturb no further call: what follows is grading."""
        self._perturbations = None

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool; see `Environment.call_tool`. ``timeout`` is for the tools that are real.

        Raises:
            SimulatorFailed: the model gave no valid result.
        """
        name = bare_name(self.env_name, tool_name)
        spec = (await self._listed()).get(name)
        if spec is None or not self.simulates(name):
            return await self._world.call_tool(tool_name, arguments, timeout)
        async with self._one:
            try:
                return await self._simulated(spec, dict(arguments or {}))
            except AEnvError as error:
                self.failure = self.failure or error
                raise

    def simulates(self, tool: str) -> bool:
        """Return whether the model answers the calls of a tool."""
        return self._tools is None or tool in self._tools

    async def _listed(self) -> dict[str, dict[str, Any]]:
        if self._specs is None:
            listed = await self.list_tools()
            self._specs = {
                name: {**tool, "name": name} for tool in listed for name in [bare_name(self.env_name, tool["name"])]
            }
        return self._specs

    async def _simulated(self, spec: dict[str, Any], arguments: dict[str, Any]) -> ToolResult:
        try:
            check_schema(arguments, spec.get("inputSchema"))
        except ValueError as error:
            return _error(f"Error calling tool '{spec['name']}': {error}", "policy")
        self._number += 1
        disturbed = self._perturbations.of_call(self._episode, self._number) if self._perturbations else frozenset()
        if disturbed:
            self._note(perturbed=sorted(disturbed), tool=spec["name"])
        if "delay" in disturbed and self._perturbations is not None:
            await asyncio.sleep(self._perturbations.delay_seconds)
        if "error" in disturbed:
            return _error(UNAVAILABLE, "env")
        made = await self._answer(spec, arguments)
        if made.error is not None:
            return _error(made.error, "env")
        content = to_content(self._part(made.value, spec) if "partial" in disturbed else made.value)
        return ToolResult(content.blocks, content.is_error, structured=content.structured, is_json=content.is_json)

    async def _answer(self, spec: dict[str, Any], arguments: dict[str, Any]) -> Simulated:
        key = json.dumps([spec["name"], arguments], sort_keys=True)
        version, known = self._known.get(key, (-1, None))
        if known is not None and version == self.state.version:
            return known
        before = self.state.version
        made = await self._simulator.call(spec, arguments)
        if self.state.version == before:
            self._known[key] = (before, made)
        self.state.add_call(spec["name"], arguments, made.value if made.error is None else {"error": made.error})
        return made

    def _part(self, value: Any, spec: dict[str, Any]) -> Any:
        """Return a part of a result, or all of it where a part would not fit its schema."""
        part = part_of(value, spec.get("outputSchema"))
        try:
            check_schema(part, spec.get("outputSchema"))
        except ValueError:
            return value
        return part


def _error(text: str, fault: Any) -> ToolResult:
    return ToolResult([{"type": "text", "text": text}], is_error=True, fault=fault)
