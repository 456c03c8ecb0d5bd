"""The Docker engine: instances are containers on this machine, run by Docker or Podman.

The runtime of a project listens on a unix socket in a folder that is mounted into its container, so that a container
needs no network to be called. The daemon says when a container ends (``POST /containers/ID/wait``); nothing polls it.
Containers carry the identity of this process: those of a server that was killed are removed by the next one.
"""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from aenv.engines.base import Capabilities, Engine, EngineOptions, Exit, SandboxRef, SandboxSpec
from aenv.engines.docker.container_body import ENGINE, SERVER, SOCKET, USER, ContainerPlacement, container_body
from aenv.engines.docker.container_output import output_text
from aenv.engines.docker.docker_api import DockerApi, DockerError, container_path
from aenv.engines.docker.docker_settings import DockerSettings
from aenv.engines.docker.memory_events import MemoryEvents
from aenv.engines.docker.project_upload import project_tar
from aenv.engines.exits import classify
from aenv.engines.taken_sockets import take_socket
from aenv.engines.teardown import finish
from aenv.errors import AEnvError, ConfigError, EnvironmentError, ImageUnavailable, LoadError, NetworkError, Unavailable
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.isolation.files.rootfs import PROJECT
from aenv.isolation.files.trees import remove_tree
from aenv.isolation.kernel.process_identity import is_running, start_time
from aenv.schema import paths
from aenv.tracing.logging import getLogger

log = getLogger("docker")

LOOK_SECONDS = 0.02
"""How often to look whether a new container answers: it takes a few hundred milliseconds."""
RECONNECT_SECONDS = 1.0
PODMAN_PROCESSES = 32768
"""Podman lowers its own limit of processes per user to this, and may not raise it again everywhere."""
LOG_CHARACTERS = 256 * 1024


class DockerEngine(Engine):
    """Runs each instance in a container."""

    capabilities = Capabilities(
        networks=frozenset(("loopback", "host")),
        images=True,
        resources=frozenset(("cpu", "memory", "gpu")),
        storage_media=frozenset(("disk",)),
    )

    def __init__(self, folder: Path, settings: DockerSettings | None = None) -> None:
        self._folder = folder
        self._settings = settings or DockerSettings()
        self._id = secrets.token_hex(6)
        self._opening = asyncio.Lock()
        self._daemon: _Daemon | None = None
        self._refs: dict[str, SandboxRef] = {}
        self._ends: dict[str, asyncio.Task[Exit]] = {}
        self._logs: dict[str, str] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        return cls(folder, DockerSettings.from_environment())

    @classmethod
    def check_host(cls) -> str:
        settings = DockerSettings.from_environment()

        async def check() -> str:
            api = DockerApi(settings.socket)
            try:
                version = await api.get("/version")
            except DockerError as error:
                raise Unavailable(error.message) from error
            finally:
                api.close()
            return f"instances are containers of {_product(version)} {version.get('Version', '')} at {settings.socket}"

        return asyncio.run(check())

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        try:
            return await self._start(spec)
        except DockerError as error:
            raise Unavailable(f"the container engine refused a request: {error.message}") from error

    async def _start(self, spec: SandboxSpec) -> SandboxRef:
        if not spec.image and not self._settings.image:
            raise ConfigError(
                "AENV_DOCKER_IMAGE is not set: an environment without an image of its own runs on a base image, one "
                "with Python 3.11 or later and this version of aenvironment"
            )
        daemon = await self._connected()
        name, token = f"aenv-{secrets.token_hex(6)}", secrets.token_urlsafe(24)
        creating = asyncio.ensure_future(self._create(daemon, name, spec, token))
        try:
            url = await asyncio.shield(creating)
            end = self._ends[name] = asyncio.create_task(_end_of(daemon.api, name))
            if url is None:
                url = await daemon.address(name)
            else:
                await self._until_listening(daemon, name, end, spec)
            await self._until_ready(daemon, name, url, end, spec)
        except BaseException:
            await finish(self._undo(name, creating))
            raise
        ref = self._refs[name] = SandboxRef(name, url, token)
        return ref

    async def poll(self, ref: SandboxRef) -> Exit | None:
        end = self._ends.get(ref.id)
        if end is None:
            return Exit(-1, "it was stopped")
        return end.result() if end.done() else None

    async def stop(self, ref: SandboxRef) -> None:
        if self._daemon is None:
            return
        try:
            await self._daemon.stop(ref.id)
        except DockerError as error:
            raise Unavailable(f"container {ref.id} could not be removed: {error.message}") from error
        for tasks in (self._ends, self._reading):
            task = tasks.pop(ref.id, None)
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._refs.pop(ref.id, None)
        self._logs.pop(ref.id, None)
        await asyncio.to_thread(self._remove_folder, ref.id)

    async def running(self) -> AsyncIterator[SandboxRef]:
        if self._daemon is None:
            return
        try:
            found = await self._daemon.api.containers(**{ENGINE: self._id})
        except DockerError as error:
            raise Unavailable(error.message) from error
        for each in found:
            name = each["Names"][0].lstrip("/")
            yield self._refs.get(name) or SandboxRef(name, "", "")

    async def close(self) -> None:
        if self._daemon is None:
            return
        names = {ref.id async for ref in self.running()} | self._refs.keys()
        await asyncio.gather(*(self.stop(SandboxRef(name, "", "")) for name in names))
        daemon, self._daemon = self._daemon, None
        await daemon.close()
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def logs(self, ref: SandboxRef) -> str:
        """Return the logs of the last fetch, and start fetching newer ones."""
        if ref.id not in self._reading and ref.id in self._refs:
            self._reading[ref.id] = asyncio.get_running_loop().create_task(self._read_log(ref.id))
        return self._logs.get(ref.id, "")

    # --- starting

    async def _connected(self) -> _Daemon:
        """Return the daemon; connect on first use, since an engine is constructed before there is an event loop."""
        async with self._opening:
            if self._daemon is None:
                self._daemon = await _Daemon.open(self._settings.socket, self._id)
            return self._daemon

    async def _create(self, daemon: _Daemon, name: str, spec: SandboxSpec, token: str) -> str | None:
        """Create and start a container; return its URL, or None if it has an address of its own."""
        sockets = None if spec.image else self._make_folder(name)
        network = "bridge" if spec.network.mode == "host" else "none" if sockets else await daemon.inner_network()
        placement = ContainerPlacement(
            engine=self._id, server=daemon.server, user=daemon.user, base_image=self._settings.image,
            runtime=self._settings.runtime, network=network, user_processes=_user_processes(), sockets=sockets,
        )  # fmt: skip
        body = container_body(spec, token, placement)
        await daemon.create(name, body)
        try:
            if sockets is not None:
                owner, _, group = daemon.user.partition(":")
                tar = await asyncio.to_thread(project_tar, spec, (int(owner), int(group)))
                await daemon.api.request("PUT", container_path(name, "archive"), tar, query={"path": "/"})
            await daemon.api.request("POST", container_path(name, "start"), b"")
        except DockerError as error:
            raise Unavailable(f"the container could not be started: {error.message}") from error
        except OSError as error:
            raise LoadError(f"the project {spec.project} cannot be read: {error}") from error
        return f"unix:{self._socket(name)}" if sockets else None

    def _make_folder(self, name: str) -> Path:
        """Make the folder that is shared with the container, in one that only this user may enter."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = self._shared_folder(name)
        made.mkdir(parents=True)
        made.chmod(0o777)
        return made

    def _remove_folder(self, name: str) -> None:
        remove_tree(self._folder / name)

    def _socket(self, name: str) -> Path:
        """Return the path of the runtime's socket, where the container does not reach it."""
        return self._folder / name / SOCKET

    def _shared_folder(self, name: str) -> Path:
        return self._folder / name / "m"

    async def _until_listening(self, daemon: _Daemon, name: str, end: asyncio.Task[Exit], spec: SandboxSpec) -> None:
        """Return once the runtime's socket is in its place, and the container can change nothing more beside it.

        Raises:
            EnvironmentError: there will be none; the class says why.
        """
        shared = self._shared_folder(name)
        while not take_socket(shared / SOCKET, self._socket(name)):
            if end.done():
                raise await self._explain(daemon, name, end.result(), spec)
            await asyncio.wait([end], timeout=LOOK_SECONDS)
        shared.chmod(0o755)

    async def _until_ready(
        self, daemon: _Daemon, name: str, url: str, end: asyncio.Task[Exit], spec: SandboxSpec
    ) -> None:
        """Return once the environment answers.

        Raises:
            EnvironmentError: it will not; the class says why.
        """
        while not end.done():
            client = HttpClient(ServerUrl.parse(url))
            try:
                if (await client.request("GET", paths.HEALTH, timeout=5)).status < 400:
                    return
            except NetworkError:
                pass
            finally:
                client.close()
            await asyncio.wait([end], timeout=LOOK_SECONDS)
        raise await self._explain(daemon, name, end.result(), spec)

    async def _explain(self, daemon: _Daemon, name: str, ended: Exit, spec: SandboxSpec) -> EnvironmentError:
        if ended.cause == "out_of_memory":
            return LoadError(f"it needs more memory than its limit to start: {ended.reason}")
        output = f"\n{await daemon.output(name)}".rpartition("\nError: ")[2].strip()
        text = output or ended.reason
        return LoadError(text.replace(f"{PROJECT}/", f"{spec.project}/"))

    async def _undo(self, name: str, creating: asyncio.Future[str | None]) -> None:
        """Remove what a failed start has made. A request that is under way may still make it: wait for its end."""
        await asyncio.wait([creating])
        if not creating.cancelled():
            creating.exception()  # which the caller has seen, or has stopped waiting for
        try:
            await self.stop(SandboxRef(name, "", ""))
        except (DockerError, AEnvError) as error:
            log.warning("container %s could not be removed: %s", name, error.message)

    async def _read_log(self, name: str) -> None:
        try:
            if self._daemon is not None:
                self._logs[name] = await self._daemon.output(name)
        except (DockerError, AEnvError) as error:
            log.debug("the log of %s could not be read: %s", name, error.message)
        finally:
            self._reading.pop(name, None)


class _Daemon:
    """The connection to the daemon, with what all containers of an engine share."""

    def __init__(self, api: DockerApi, engine: str, user: str, *, separates: bool) -> None:
        self.api, self.user = api, user
        self.server = ":".join((str(os.getpid()), start_time(os.getpid()) or "", _process_namespace()))
        self._engine = engine
        self._separates = separates
        """The daemon can keep containers in one network from each other."""
        self._network = ""
        self._making_network = asyncio.Lock()

    @classmethod
    async def open(cls, socket: str, engine: str) -> _Daemon:
        api = DockerApi(socket)
        try:
            about, version = await api.get("/info"), await api.get("/version")
            rootless = "name=rootless" in (about.get("SecurityOptions") or ())
            user = "0:0" if rootless else USER if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"
            made = cls(api, engine, user, separates=_product(version) == "Docker")
            await made._remove_orphans()
        except DockerError as error:
            api.close()
            raise Unavailable(f"the container engine at {socket}: {error.message}") from error
        except BaseException:
            api.close()
            raise
        return made

    async def _remove_orphans(self) -> None:
        """Remove the containers of servers in this process namespace that have ended."""
        for each in await self.api.containers(**{SERVER: ""}):
            pid, started, namespace = [*each["Labels"][SERVER].split(":"), "", ""][:3]
            if namespace == _process_namespace() and pid.isdecimal() and not is_running(int(pid), started):
                log.warning("container %s belonged to a server that has ended; it is removed", each["Names"][0])
                await self.api.remove(each["Id"])

    async def create(self, name: str, body: dict[str, Any]) -> None:
        """Create a container; pull its image if the daemon lacks it.

        Raises:
            ImageUnavailable: the image cannot be pulled.
        """
        for attempt in range(2):
            try:
                await self.api.request("POST", "/containers/create", body, query={"name": name})
                return
            except DockerError as error:
                if error.answer != 404:
                    raise Unavailable(f"the container could not be created: {error.message}") from error
                if attempt:
                    raise ImageUnavailable(f"image {body['Image']} cannot be used: {error.message}") from error
                log.info("pulling image %s", body["Image"])
                await self.api.pull(body["Image"])

    async def inner_network(self) -> str:
        """Return the network, without a way out, of containers that have to be called at an address."""
        async with self._making_network:
            if not self._network:
                name = f"aenv-{self._engine}"
                apart = {"com.docker.network.bridge.enable_icc": "false"} if self._separates else {}
                body = {"Name": name, "Driver": "bridge", "Internal": True, "Options": apart}
                await self.api.request("POST", "/networks/create", {**body, "Labels": {ENGINE: self._engine}})
                self._network = name
            return self._network

    async def address(self, name: str) -> str:
        """Return the URL of a container that listens at the port of instances."""
        about = await self.api.get(container_path(name, "json"))
        networks = about["NetworkSettings"].get("Networks") or {}
        found = [each["IPAddress"] for each in networks.values() if each.get("IPAddress")]
        if not found:
            raise Unavailable(f"container {name} has no address: {about['State'].get('Error') or 'it has ended'}")
        return f"http://{found[0]}:{paths.DATA_PORT}"

    async def output(self, name: str) -> str:
        """Return the end of a container's output."""
        data = await self.api.request(
            "GET", container_path(name, "logs"), query={"stdout": "true", "stderr": "true", "tail": "10000"}
        )
        return output_text(data)[-LOG_CHARACTERS:]

    async def stop(self, name: str) -> None:
        """End and remove a container; its processes get a moment to end by themselves."""
        try:
            await self.api.request("POST", container_path(name, "stop"), b"")
        except DockerError as error:
            if error.answer not in (304, 404):
                log.debug("container %s could not be stopped: %s", name, error.message)
        await self.api.remove(name)

    async def close(self) -> None:
        """Remove the network, and end the connection."""
        try:
            if self._network:
                await self.api.request("DELETE", f"/networks/{self._network}")
        except (DockerError, AEnvError) as error:
            log.warning("network %s could not be removed: %s", self._network, error.message)
        finally:
            self.api.close()


async def _end_of(api: DockerApi, name: str) -> Exit:
    """Return how a container ended, once it has."""
    try:
        about = await api.get(container_path(name, "json"))
        events = MemoryEvents(int(about["State"].get("Pid") or 0))
    except (DockerError, AEnvError) as error:
        log.debug("container %s cannot be described: %s", name, error.message)
        events = MemoryEvents(0)
    try:
        return await _wait(api, name, events)
    finally:
        events.close()


async def _wait(api: DockerApi, name: str, events: MemoryEvents) -> Exit:
    """Return how a container ended, once it has. A daemon that restarts meanwhile is asked again."""
    while True:
        try:
            await api.request("POST", container_path(name, "wait"), b"", timeout=None)
            state = (await api.get(container_path(name, "json")))["State"]
            if not state.get("Running"):
                return _exit(state, events)
        except DockerError as error:
            if error.answer == 404:
                return Exit(-1, "the container was removed from outside", "killed")
        except AEnvError as error:
            log.debug("waiting for container %s: %s", name, error.message)
        await asyncio.sleep(RECONNECT_SECONDS)


def _exit(state: dict[str, Any], events: MemoryEvents) -> Exit:
    code = int(state.get("ExitCode") or 0)
    out_of_memory = bool(state.get("OOMKilled")) or events.out_of_memory
    return classify(128 - code if code > 128 else code, out_of_memory=out_of_memory)


def _product(version: dict[str, Any]) -> str:
    names = [str(each.get("Name", "")) for each in version.get("Components") or ()]
    return "Podman" if any("Podman" in name for name in names) else "Docker"


def _user_processes() -> int:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return 0 if most == resource.RLIM_INFINITY else min(most, PODMAN_PROCESSES)


def _process_namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")
