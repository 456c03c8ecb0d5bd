"""Additional containers of a task (docker-compose), each in a box of its own in the network of the task's box.

They share a network as in a pod: a service is reachable by its name and at localhost, and two services cannot use the
same port. They run while the agent works and while its work is graded. Files and processes are not shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import graphlib
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aenv.errors import ConfigError, Unavailable
from aenv.images import base_roots, layered_images
from aenv.images.box import Box, BoxResult
from aenv.images.box_network import BoxNetwork
from aenv.images.dockerfile import expand
from aenv.images.dockerfile_build import build
from aenv.images.layered_images import BoxImage
from aenv.isolation.limits.cgroups import Cgroup

POLL_SECONDS = 0.2
HEALTHY_SECONDS = 120.0
"""Seconds until a service must be healthy."""
MAX_OUTPUT = 1500
"""Characters of output in an error message."""
_SUPPORTED = frozenset((
    "build", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "user", "working_dir",
))  # fmt: skip
_IGNORED = frozenset((
    "container_name", "cpus", "deploy", "expose", "hostname", "init", "labels", "mem_limit", "networks", "platform",
    "ports", "pull_policy", "restart", "stdin_open", "stop_grace_period", "tty",
))  # fmt: skip
"""Keys without effect here: all services share a network, have the task's limits, and end with it."""


@dataclass(frozen=True, slots=True)
class ComposeService:
    """An additional container of a task."""

    name: str
    image: str = ""
    dockerfile: Path | None = None
    context: Path = Path()
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    health: tuple[str, ...] = ()
    """Command of the health check; empty: the service counts as healthy at once."""


@dataclass(frozen=True, slots=True)
class Compose:
    """Containers of a task."""

    services: tuple[ComposeService, ...] = ()
    """Additional containers in the order of their start."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the task's own container."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the additional containers."""
        return tuple(service.name for service in self.services)


def read(document: Any, folder: Path, own: str) -> Compose:
    """Parse a docker-compose.yaml; ``own`` is the service that the task's Dockerfile builds.

    Raises:
        ConfigError: the file is invalid, or uses an unsupported key.
    """
    found = document.get("services") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ConfigError(f"{folder.name}: docker-compose.yaml has no services")
    services = {name: _service(name, about, folder) for name, about in found.items() if name != own}
    needs = {name: [each for each in found[name].get("depends_on") or () if each in services] for name in services}
    try:
        order = list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError:
        raise ConfigError(f"{folder.name}: services of docker-compose.yaml depend on each other") from None
    variables = _variables(found.get(own, {}).get("environment")) if services else {}
    return Compose(tuple(services[name] for name in order), variables)


def _service(name: str, about: Mapping[str, Any], folder: Path) -> ComposeService:
    for key in about:
        if key not in _SUPPORTED | _IGNORED:
            raise ConfigError(f"{folder.name}: {key} of the service {name} (docker-compose) is not supported")
    build = about.get("build")
    build = {"context": build} if isinstance(build, str) else build
    context = (folder / str(build.get("context") or ".")).resolve() if build else folder
    if not context.is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder.name}: the build context of the service {name} is outside of its task")
    if not build and not about.get("image"):
        raise ConfigError(f"{folder.name}: the service {name} has neither an image nor a build")
    return ComposeService(
        name, str(about.get("image") or ""), context / str(build.get("dockerfile") or "Dockerfile") if build else None,
        context, _words(about.get("entrypoint")), _words(about.get("command")), _variables(about.get("environment")),
        str(about.get("working_dir") or ""), str(about.get("user") or ""), _health(about.get("healthcheck")),
    )  # fmt: skip


def _words(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(shlex.split(expand(value, {}))) if isinstance(value, str) else tuple(str(word) for word in value)


def _variables(value: Any) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else (str(each).partition("=")[::2] for each in value or ())
    return {str(name): expand(str("" if text is None else text), {}) for name, text in pairs}


def _health(value: Any) -> tuple[str, ...]:
    test = value.get("test") if isinstance(value, dict) and not value.get("disable") else None
    if not test or test == ["NONE"]:
        return ()
    if isinstance(test, str):
        return ("/bin/sh", "-c", test)
    kind, *words = [str(word) for word in test]
    return ("/bin/sh", "-c", *words) if kind == "CMD-SHELL" else tuple(words)


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts the additional containers of a task."""

    compose: Compose
    network: BoxNetwork
    folder: Path
    """Folder for their writable layers."""
    group: Callable[[], Cgroup | None]

    @asynccontextmanager
    async def beside(self, own: Box) -> AsyncIterator[None]:
        """Run all services until the end of the block.

        Raises:
            BuildFailed, ConfigError: a service cannot be built.
            Unavailable: a service has ended, or is not healthy in time.
        """
        async with AsyncExitStack() as stack:
            if self.compose.services:
                stack.push_async_callback(layered_images.remove, self.folder)
            for service in self.compose.services:
                await self._start(service, own, stack)
            yield

    async def _start(self, service: ComposeService, own: Box, stack: AsyncExitStack) -> None:
        image = await (
            build(service.dockerfile, service.context) if service.dockerfile else base_roots.base_image(service.image)
        )
        state = layered_images.new_state(self.folder / service.name)
        box = await stack.enter_async_context(
            self.network.box(image, state, variables=service.variables, group=self.group(), network_of=own)
        )
        running = asyncio.create_task(_run(service, image, box))
        stack.push_async_callback(_cancel, running)
        if service.health:
            await _wait_until_healthy(service, image, box, running)


async def _run(service: ComposeService, image: BoxImage, box: Box) -> BoxResult:
    entrypoint = image.entrypoint if service.entrypoint is None else service.entrypoint
    own = () if service.entrypoint is not None else image.command
    argv = [*entrypoint, *(own if service.command is None else service.command)]
    if not argv:
        raise ConfigError(f"the service {service.name} has no command to run")
    return await box.exec(argv, cwd=service.cwd or image.cwd, user=service.user or image.user, merge_stderr=True)


async def _cancel(running: asyncio.Task[BoxResult]) -> None:
    """Cancel a service before its box is stopped. Services stop in the reverse order of their start."""
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError, Unavailable):
        await running


async def _wait_until_healthy(
    service: ComposeService, image: BoxImage, box: Box, running: asyncio.Task[BoxResult]
) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS
    while not running.done() and time.monotonic() < deadline:
        done = await box.exec(
            list(service.health), cwd=service.cwd or image.cwd, timeout=HEALTHY_SECONDS, merge_stderr=True
        )
        if done.code == 0:
            return
        await asyncio.sleep(POLL_SECONDS)
    if running.done():
        ended = running.result()
        raise Unavailable(f"{service.name} has ended with exit code {ended.code}:\n{ended.output[-MAX_OUTPUT:]}")
    raise Unavailable(f"{service.name} is not healthy after {HEALTHY_SECONDS:g} s:\n{done.output[-MAX_OUTPUT:]}")
