"""``/ready`` while creates fail, and after they work again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.errors import LoadError, Unavailable
from aenv.http.messages import Request, Response
from aenv.platform.instances import create_probe
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.operations import readiness
from aenv.platform.operations.readiness import Readiness
from aenv.schema import paths
from aenv.schema.instances import EnvInstanceCreateRequest
from tests.conftest import fetch, run
from tests.platform.between import NoSources, OneEngine
from tests.platform.parts import serving
from tests.waiting import wait_while


class Failing(OneEngine):
    """Starts or fails as the test decides."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.fails: Callable[[SandboxSpec], Exception | None] = lambda spec: None
        self.started: list[str] = []
        self.stopped = 0

    async def start(self, spec: SandboxSpec) -> SandboxRef:
        error = self.fails(spec)
        if error is not None:
            raise error
        self.started.append(spec.name)
        return SandboxRef(f"s{len(self.started)}", "unix:/nowhere", "t")

    async def stop(self, ref: SandboxRef) -> None:
        self.stopped += 1


async def ask(ready: Readiness) -> tuple[int, Any]:
    async def nothing(request: Request) -> Response:
        raise AssertionError(request.path)

    request = Request()
    request.path = paths.READY
    answer = await ready.wrap(nothing)(request)
    assert isinstance(answer, Response)
    return answer.status, json.loads(answer.body)["data"]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CACHE_SECONDS", -1.0)
    monkeypatch.setattr(create_probe, "PROBE_INTERVAL", 0.0)


async def create(instances: Instances, name: str = "x") -> None:
    try:
        await instances.create(EnvInstanceCreateRequest(envName=name))
    except (Unavailable, LoadError, OSError):
        return


def test_a_platform_is_unready_while_creates_fail_and_recovers_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Failing()
        instances = Instances(engine, NoSources(), direct=False)
        ready = Readiness(engine, creates=instances.creates, folders=[tmp_path])
        assert (await ask(ready))[0] == 200
        assert not engine.started  # no probe runs while nothing has failed
        for error in (Unavailable("no space left"), OSError(28, "No space left on device")):
            engine.fails = lambda spec, error=error: error  # type: ignore[misc]
            await create(instances)
            status, said = await ask(ready)
            assert status == 503
            assert "space left" in said["creates"]
            engine.fails = lambda spec: None
            assert (await ask(ready))[0] == 200  # a probe has succeeded
        assert engine.started == ["probe", "probe"]
        assert engine.stopped == 2
        assert not list(tmp_path.iterdir())

    run(main())


@pytest.mark.attack("limits")
def test_one_environment_that_cannot_start_does_not_make_a_platform_unready(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Failing()
        instances = Instances(engine, NoSources(), direct=False)
        ready = Readiness(engine, creates=instances.creates, folders=[tmp_path])
        for error in (Unavailable("it used up its memory"), LoadError("no such module")):
            engine.fails = lambda spec, error=error: error if spec.name == "x" else None  # type: ignore[misc]
            for _ in range(20):
                await create(instances)
            assert (await ask(ready))[0] == 200

    run(main())


def test_a_successful_create_makes_the_platform_ready(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Failing()
        instances = Instances(engine, NoSources(), direct=False)
        ready = Readiness(engine, creates=instances.creates)
        engine.fails = lambda spec: Unavailable("broken") if spec.name != "good" else None
        await create(instances)
        assert (await ask(ready))[0] == 503
        await create(instances, "good")
        assert (await ask(ready))[0] == 200

    run(main())


def test_readiness_does_not_wait_for_a_hanging_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "SECONDS", 0.05)

    class Hanging(Failing):
        async def start(self, spec: SandboxSpec) -> SandboxRef:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async def main() -> None:
        instances = Instances(Hanging(), NoSources(), direct=False)
        instances.creates.record_failure(Unavailable("broken"))
        ready = Readiness(instances.engine, creates=instances.creates)
        assert (await ask(ready)) == (503, {"ready": False, "engine": "ok", "creates": "no answer within 0.05 s"})
        await ready.close()

    run(main())


def test_a_full_or_missing_folder_makes_the_platform_unready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ready = Readiness(Failing(), folders=[tmp_path])
        assert (await ask(ready))[0] == 200
        for limit in ("MIN_FREE_BYTES", "MIN_FREE_FILES"):
            with monkeypatch.context() as patched:
                patched.setattr(create_probe, limit, 1 << 62)
                status, said = await ask(ready)
                assert status == 503
                assert said["disk"].startswith(f"{tmp_path} is full: ")
        assert (await ask(ready))[0] == 200
        status, said = await ask(Readiness(Failing(), folders=[tmp_path / "gone"]))
        assert status == 503
        assert "cannot be written to: No such file" in said["disk"]

    run(main())


def test_a_served_platform_probes_with_a_real_sandbox(data: Path) -> None:
    """Its cache is not writable for a while, so no environment can be unpacked there."""
    with serving(data, auth=False) as platform:
        assert fetch(platform.url, "/ready")[1]["data"] == {
            "ready": True, "engine": "ok", "store": "ok", "creates": "ok", "disk": "ok",
        }  # fmt: skip
        cache = data / "cache" / "aenv"
        hidden = cache.rename(data / "hidden")
        cache.write_text("not a folder")
        status, said = fetch(platform.url, "/env-instance", {"envName": "counter"})
        assert (status, said["error_code"], said["fault"]) == (503, "unavailable", "infra")
        wait_while(lambda: fetch(platform.url, "/ready")[0] != 503, "it is still ready")
        cache.unlink()
        hidden.rename(cache)
        wait_while(lambda: fetch(platform.url, "/ready")[0] != 200, "the probe did not make it ready again")
