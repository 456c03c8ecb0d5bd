"""Fixtures of tests that call the SDK against one server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from aenv import Environment
from aenv.testing import Server, running
from tests.conftest import ENVS, run


@pytest.fixture(scope="module")
def everything_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the environment `everything`, for the tests of a module."""
    with running(ENVS / "everything.py", log=tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture
def everything(everything_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Environment` use that server."""
    monkeypatch.setenv("AENV_INSTANCE_URL", everything_server.url)


def in_env(use: Callable[[Environment], Awaitable[Any]]) -> Any:
    """Return what ``use`` returns for an `Environment` of that server."""

    async def main() -> Any:
        async with Environment("everything@1.0.0") as env:
            return await use(env)

    return run(main())
