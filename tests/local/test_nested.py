"""Environments that code in an instance of the local platform opens."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv import Environment
from tests.conftest import run
from tests.local_instances import local_api
from tests.nested_envs import CODE, publish


@pytest.fixture(scope="module")
def hub_data() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    for name, opens in {"inner": ["innermost"], "innermost": [], "again": ["again"]}.items():
        asyncio.run(publish(folder, name, opens))
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _use_hub(hub_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_DATA_DIR", str(hub_data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(hub_data / "cache"))


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    return make(tmp_path / "outer", ["inner@^1", "again"])


def make(folder: Path, environments: list[str]) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "env.py").write_text(CODE)
    deploy = {"memory": "256Mi", "environments": environments} if environments else {"memory": "256Mi"}
    (folder / "config.json").write_text(json.dumps({"name": folder.name, "version": "1.0.0", "deployConfig": deploy}))
    return folder


async def alive() -> set[str]:
    async with local_api() as api:
        return {each.id for each in await api.list_env_instances()}


async def error_of(env: Environment, tool: str, **arguments: object) -> str:
    result = await env.call_tool(tool, arguments)
    assert result.is_error, result
    return str(result.content[0]["text"])


def test_a_tool_opens_an_environment_whose_tool_opens_another(outer: Path) -> None:
    async def main() -> None:
        async with Environment(str(outer)) as env:
            for _ in range(2):
                result = await env.call_tool("chain", {"names": ["inner", "innermost"]})
                assert result.data == ["outer", "inner", "innermost"], result
            several = await asyncio.gather(*(env.call_tool("chain", {"names": ["inner"]}) for _ in range(5)))
            assert [each.data for each in several] == [["outer", "inner"]] * 5
            assert (await env.call_tool("chain_blocking", {"name": "inner@1.0.0"})).data == ["inner"]
            assert await alive() == {env.instance_id}

    run(main())


def test_an_undeclared_environment_is_refused_by_name(outer: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with Environment(str(outer)) as env:
            said = await error_of(env, "chain", names=["innermost"])
            assert "outer@1.0.0 may not open 'innermost': its config.json declares inner@^1, again" in said
        async with Environment(str(make(tmp_path / "closed", []))) as env:
            assert "config.json declares" in await error_of(env, "chain", names=["inner"])
            assert await alive() == {env.instance_id}

    run(main())


def test_the_depth_is_limited(outer: Path) -> None:
    async def main() -> None:
        async with Environment(str(outer)) as env:
            deep = ["again", "again", "again"]
            assert (await env.call_tool("chain", {"names": deep})).data == ["outer", *deep]
            assert "nested at most 3 deep" in await error_of(env, "chain", names=[*deep, "again"])
            assert await alive() == {env.instance_id}

    run(main())


def test_the_end_of_an_instance_ends_those_that_it_opened(outer: Path) -> None:
    async def main() -> None:
        async with Environment(str(outer)) as other:
            async with Environment(str(outer)) as env:
                opened = {(await env.call_tool("hold", {"name": "inner"})).data for _ in range(2)}
                assert await alive() == {other.instance_id, env.instance_id, *opened}
            async with asyncio.timeout(30):
                while await alive() != {other.instance_id}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    run(main())


def test_a_program_of_a_tool_reaches_no_platform(outer: Path) -> None:
    attempts = (
        "import asyncio; from aenv import Environment\n"
        "async def main():\n    async with Environment('inner') as env: print('opened')\n"
        "asyncio.run(main())",
        "import socket; socket.socket(socket.AF_UNIX).connect('/aenv-platform'); print('opened')",
        "import os; os.listdir('/proc/1/fd'); print('opened')",
        "import os, stat, sys\n"
        "kinds = [stat.S_ISSOCK(os.fstat(n).st_mode) for n in range(3, 1024) if os.path.exists(f'/proc/self/fd/{n}')]\n"
        "print('opened') if any(kinds) else sys.exit(1)",
    )

    async def main() -> None:
        async with Environment(str(outer)) as env:
            await env.call_tool("hold", {"name": "inner"})  # the connection is there, and in use
            for code in attempts:
                status, output = (await env.call_tool("program", {"code": code})).data
                assert (status != 0, "opened" in output) == (True, False), (code, output)

    run(main())
