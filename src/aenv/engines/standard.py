"""The standard engine: instances made by an external service, over five HTTP routes; see docs/reference/engines.md.

The service may have other users, so this engine lists and stops only instances that it requested itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pydantic_core import from_json, to_json

from aenv.engines.base import Capabilities, Engine, EngineOptions, Exit, SandboxRef, SandboxSpec
from aenv.errors import EnvironmentError, EnvironmentTimeoutError, NetworkError, NotFound, Unavailable, from_answer
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.schema import paths
from aenv.schema.instances import EnvInstance, EnvStatus
from aenv.tracing.logging import getLogger

log = getLogger("standard")

REQUEST_SECONDS = 30.0
HEALTH_BYTES = 64 * 1024
START_SECONDS = 300.0
PAUSE_FIRST, PAUSE_MOST = 0.05, 1.0
FRESH = 1.0
"""Reuse a list of instances for this many seconds: a platform polls each of a thousand, one after another."""
_ENDED = (EnvStatus.FAILED, EnvStatus.TERMINATED)


class StandardEngine(Engine):
    """Requests instances from a service."""

    # The service gets the network mode and the resources of a request, and has to refuse what it cannot give.
    # It also gets the environment's image and template.
    capabilities = Capabilities(
        networks=frozenset(("none", "loopback", "egress", "host")),
        images=True,
        second_container=True,
        resources=frozenset(("cpu", "memory", "storage", "gpu")),
        storage_media=frozenset(("memory", "disk")),  # the service gets the choice as part of deployConfig
    )

    def __init__(self, url: str, token: str = "") -> None:
        self._url = ServerUrl.parse(url)
        self._http = HttpClient(self._url, token=token or None, headers=[("accept", "application/json")])
        self._own: dict[str, SandboxRef] = {}
        self._seen: tuple[float, dict[str, EnvInstance]] = (float("-inf"), {})
        self._listing = asyncio.Lock()
        self._closed = False
        self._logs: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> Self:
        return cls(options.url, options.token)

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        made = await self._instance("POST", paths.STANDARD, environment_of(spec), seconds=START_SECONDS)
        self._own[made.id] = SandboxRef(made.id, "", "")
        try:
            ref = self._own[made.id] = self._ref(await self._running(made))
            await self._until_it_answers(ref)
        except BaseException:
            await asyncio.shield(self._stop_or_log(made.id))
            raise
        return ref

    async def poll(self, ref: SandboxRef) -> Exit | None:
        if ref.id not in self._own:
            return Exit(-1, "it was stopped")
        found = (await self._list()).get(ref.id)
        if found is None:  # younger than the list, or gone
            try:
                found = await self._instance("GET", _one(ref.id))
            except NotFound:
                return Exit(-1, f"{self._url} has no such instance any more")
        if found.status in _ENDED:
            return Exit(1, found.reason or f"{self._url} reports the status {found.status}")
        return None

    async def stop(self, ref: SandboxRef) -> None:
        with contextlib.suppress(NotFound):
            await self._request("DELETE", _one(ref.id))
            await self._until_gone(ref.id)
        self._own.pop(ref.id, None)
        self._logs.pop(ref.id, None)

    async def running(self) -> AsyncIterator[SandboxRef]:
        if self._closed:
            return
        there = await self._list(fresh=True)
        for name, ref in list(self._own.items()):
            if name in there and there[name].status not in _ENDED:
                yield ref

    async def close(self) -> None:
        for name in list(self._own):
            await self._stop_or_log(name)
        for task in self._fetching.values():
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        self._closed = True
        self._http.close()

    def logs(self, ref: SandboxRef) -> str:
        """Return the logs of the last fetch, and start fetching newer ones."""
        if ref.id not in self._fetching and ref.id in self._own:
            self._fetching[ref.id] = asyncio.get_running_loop().create_task(self._fetch_logs(ref.id))
        return self._logs.get(ref.id, "")

    def usage(self, ref: SandboxRef) -> dict[str, Any]:
        found = self._seen[1].get(ref.id)
        return dict(found.usage or {}) if found is not None else {}

    # --- the service

    async def _running(self, made: EnvInstance) -> EnvInstance:
        deadline, pause = time.monotonic() + START_SECONDS, PAUSE_FIRST
        while made.status != EnvStatus.RUNNING:
            if made.status in _ENDED:
                raise EnvironmentError(made.reason or f"{self._url}: the instance is {made.status}")
            if time.monotonic() > deadline:
                raise EnvironmentTimeoutError(f"{self._url}: the instance is {made.status} after {START_SECONDS:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MOST)
            made = await self._instance("GET", _one(made.id))
        return made

    def _ref(self, made: EnvInstance) -> SandboxRef:
        if made.data_url:
            where = made.data_url
        elif made.ip:
            where = str(ServerUrl.parse(made.ip, default_port=paths.DATA_PORT))
        else:
            raise EnvironmentError(f"{self._url} does not say where the instance {made.id} can be reached: no ip")
        return SandboxRef(made.id, where, made.token or "", healthy=bool(made.healthy))

    async def _until_it_answers(self, ref: SandboxRef) -> None:
        """Wait until the instance answers: a service may report it as running as soon as its container is."""
        client = HttpClient(ServerUrl.parse(ref.data_url), token=ref.token or None)
        deadline, pause = time.monotonic() + START_SECONDS, PAUSE_FIRST
        try:
            while True:
                try:
                    await client.request("GET", paths.HEALTH, timeout=REQUEST_SECONDS, limit=HEALTH_BYTES)
                    return
                except NetworkError as error:
                    ended = await self.poll(ref)
                    if ended is not None:
                        raise EnvironmentError(ended.reason) from error
                    if time.monotonic() > deadline:
                        raise EnvironmentTimeoutError(f"{ref.data_url} does not answer: {error.message}") from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_MOST)
        finally:
            client.close()

    async def _until_gone(self, name: str) -> None:
        pause = PAUSE_FIRST
        while (await self._instance("GET", _one(name))).status not in _ENDED:
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MOST)

    async def _stop_or_log(self, name: str) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self.stop(SandboxRef(name, "", ""))
        except (EnvironmentError, TimeoutError) as error:
            log.warning("%s: instance %s could not be stopped: %s", self._url, name, error)

    async def _list(self, *, fresh: bool = False) -> dict[str, EnvInstance]:
        async with self._listing:
            if fresh or time.monotonic() - self._seen[0] > FRESH:
                items = await self._request("GET", paths.STANDARD) or []
                found = [EnvInstance.model_validate(item) for item in items if item.get("id") in self._own]
                self._seen = time.monotonic(), {each.id: each for each in found}
            return self._seen[1]

    async def _fetch_logs(self, name: str) -> None:
        """Fetch the logs of one instance, if the service has them."""
        try:
            text = await self._request("GET", f"{_one(name)}/logs")
            if name in self._own:
                self._logs[name] = str(text or "")
        except EnvironmentError:
            return
        finally:
            self._fetching.pop(name, None)

    async def _instance(self, method: str, path: str, body: Any = None, seconds: float | None = None) -> EnvInstance:
        data = await self._request(method, path, body, seconds)
        if not isinstance(data, dict) or not data.get("id"):
            raise EnvironmentError(f"{self._url}: {method} {path} returned no instance")
        return EnvInstance.model_validate(data)

    async def _request(self, method: str, path: str, body: Any = None, seconds: float | None = None) -> Any:
        """Send a request; return the ``data`` of the answer."""
        sent = None if body is None else to_json(body)
        try:
            answer = await self._http.request(method, path, sent, timeout=seconds or REQUEST_SECONDS)
        except NetworkError as error:
            raise Unavailable(f"the engine at {self._url} does not answer: {error.message}") from error
        try:
            content = from_json(answer.body)
        except ValueError:
            content = {}
        if answer.status >= 400 or not isinstance(content, dict) or content.get("success") is False:
            raise from_answer(answer.status, content if isinstance(content, dict) else {})
        return content.get("data")


def environment_of(spec: SandboxSpec) -> dict[str, Any]:
    """Return the request as the contract has it: the environment's config.json, with the rest in its deployConfig."""
    config = _config(spec.project)
    name, _, version = spec.name.partition("@")
    given = config.get("deployConfig")
    deploy = {
        **(given if isinstance(given, dict) else {}),
        "environment_variables": spec.variables,
        "arguments": spec.arguments,
        "dataSource": spec.variables.get("AENV_DATASOURCE", ""),
        "owner": spec.variables.get("AENV_OWNER", ""),
        "cpu": f"{spec.limits.cpus:g}",
        "memory": str(spec.limits.memory),
        "ephemeralStorage": str(spec.limits.disk),
        "network": spec.network.config_value,
        "tenant": spec.tenant,
        **({"gpu": spec.gpus} if spec.gpus else {}),
        **({"ttl": spec.ttl} if spec.ttl else {}),
        **({"labels": spec.labels} if spec.labels else {}),
        **_second_image(given, spec.variables.get("AENV_DATASOURCE", "")),
    }
    known = ("description", "tags", "artifacts", "status")
    both = {
        "codeUrl": f"file://{spec.code}",
        "buildConfig": config.get("buildConfig") or {},
        "testConfig": config.get("testConfig") or {},
        "deployConfig": deploy,
    }
    snake = {"codeUrl": "code_url", "buildConfig": "build_config", "testConfig": "test_config"}
    return {
        "id": spec.name, "name": name, "version": version, **{key: config[key] for key in known if key in config},
        **both, **{snake.get(key, "deploy_config"): value for key, value in both.items()},
    }  # fmt: skip


def _second_image(deploy: Any, datasource: str) -> dict[str, str]:
    """Return the image of the second container: prefix and datasource, or the datasource alone."""
    if not isinstance(deploy, dict) or str(deploy.get("podTemplate", "")).lower() != "dualcontainer" or not datasource:
        return {}
    return {"secondImageName": f"{deploy.get('imagePrefix') or ''}{datasource}"}


def _config(project: Path) -> dict[str, Any]:
    try:
        found = from_json((project / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _one(name: str) -> str:
    return f"{paths.STANDARD}/{quote(name, safe='')}"
