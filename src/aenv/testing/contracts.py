"""Contract tests for engines. Subclass `EngineContract` with an ``engine`` fixture to run them on an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Capabilities, Engine, SandboxRef, SandboxSpec
from aenv.errors import AEnvError
from aenv.http.url import ServerUrl

SOURCE = """
import os
from aenv import register_tool

count = 0

@register_tool
def increment() -> int:
    global count
    count += 1
    return count

@register_tool
def variable(name: str) -> str | None:
    return os.environ.get(name)

@register_tool
def speak(text: str) -> None:
    print(text, flush=True)
"""

MakeEngine = Callable[[], Engine]


class EngineContract:
    """Contract of every engine. The ``engine`` fixture is a function without arguments that creates a new engine."""

    keeps_ready: ClassVar[bool] = False
    """True for an engine that keeps sandboxes ready, so that `Engine.claim` must return one after some starts."""

    def _run(self, engine: MakeEngine, use: Callable[[Engine], Awaitable[None]]) -> None:
        async def main() -> None:
            made = engine()
            try:
                await use(made)
            finally:
                await made.close()
            assert [ref async for ref in made.running()] == []

        asyncio.run(asyncio.wait_for(main(), 60))

    def _spec(self, folder: Path, **more: Any) -> SandboxSpec:
        project = folder / "project"
        project.mkdir(exist_ok=True)
        source = project / "env.py"
        if not source.exists():
            source.write_text(SOURCE)
        return SandboxSpec("contract@1.0.0", project, project, **more)

    def test_a_started_sandbox_answers_and_a_stopped_sandbox_is_gone(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            ref = await made.start(self._spec(tmp_path))
            assert await _call(ref, "increment") == "1"
            assert await made.poll(ref) is None
            assert [r.id async for r in made.running()] == [ref.id]
            await made.stop(ref)
            await made.stop(ref)
            assert await made.poll(ref) is not None
            assert [r async for r in made.running()] == []

        self._run(engine, use)

    def test_two_sandboxes_of_one_environment_share_nothing(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            one, other = await asyncio.gather(*(made.start(self._spec(tmp_path)) for _ in range(2)))
            assert [await _call(ref, "increment") for ref in (one, one, other)] == ["1", "2", "1"]
            assert one.token != other.token

        self._run(engine, use)

    def test_an_engine_says_what_it_can_do(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            assert isinstance(made.capabilities, Capabilities)
            assert made.capabilities.networks, "an engine gives every sandbox some network mode, if only 'none'"
            assert type(made).capabilities is made.capabilities  # the platform asks before it constructs the engine

        self._run(engine, use)

    def test_a_ready_sandbox_is_claimed_once(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            spec = self._spec(tmp_path)
            assert made.claim(spec) is None  # there was no request for one yet
            taken = {(await made.start(spec)).id for _ in range(4)}
            claimed = made.claim(spec)
            while self.keeps_ready and claimed is None:  # bounded by the timeout of `_run`
                await asyncio.sleep(0.01)
                claimed = made.claim(spec)
            while claimed is not None:
                assert claimed.id not in taken
                taken.add(claimed.id)
                assert await _call(claimed, "increment") == "1"
                claimed = made.claim(spec) if len(taken) < 16 else None
            assert taken <= {r.id async for r in made.running()}  # one that is being made may be there as well

        self._run(engine, use)

    def test_each_sandbox_has_its_own_variables(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            one = await made.start(self._spec(tmp_path, variables={"MINE": "1"}))
            other = await made.start(self._spec(tmp_path))
            assert await _call(one, "variable", name="MINE") == "1"
            assert await _call(other, "variable", name="MINE") is None

        self._run(engine, use)

    def test_a_wrong_token_is_refused(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            ref = await made.start(self._spec(tmp_path))
            error = await _error_of(_call(SandboxRef(ref.id, ref.data_url, "wrong"), "increment"))
            assert error.status == 401

        self._run(engine, use)

    def test_broken_code_is_reported_and_leaves_nothing_behind(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            spec = self._spec(tmp_path)
            (spec.project / "env.py").write_text("import no_such_module_anywhere\n")
            error = await _error_of(made.start(spec))
            assert "no_such_module_anywhere" in error.message
            assert f"{spec.project / 'env.py'}:1" in error.message
            assert [r async for r in made.running()] == []

        self._run(engine, use)

    def test_output_of_tools_is_in_the_log(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            ref = await made.start(self._spec(tmp_path))
            await _call(ref, "speak", text="hello from inside")
            while "hello from inside" not in made.logs(ref):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        self._run(engine, use)

    def test_a_cancelled_start_leaves_nothing_behind(self, engine: MakeEngine, tmp_path: Path) -> None:
        async def use(made: Engine) -> None:
            task = asyncio.create_task(made.start(self._spec(tmp_path)))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert [r async for r in made.running()] == []

        self._run(engine, use)


async def _error_of(work: Awaitable[object]) -> AEnvError:
    try:
        await work
    except AEnvError as error:
        return error
    raise AssertionError("the request was not refused")


async def _call(ref: SandboxRef, tool: str, **arguments: Any) -> str | None:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        data = await client.call(f"/tools/{tool}", arguments, timeout=30)
    finally:
        client.close()
    return data["content"][0]["text"] if data["content"] else None
