from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.host import Platform, own_platform, start_shared_threads
from tests.waiting import PATIENCE

HERE = Path(__file__).parent
PROBE = HERE / "probe"
SECRET = "exported-before-the-platform-was-started"


LOADED_AT = "import sys; result = next(m.LOADED_AT for m in list(sys.modules.values()) if hasattr(m, 'LOADED_AT'))"


class Box:
    """One instance of the probe environment."""

    def __init__(self, env: SyncEnvironment) -> None:
        self.env = env

    def call(self, tool: str, timeout: float | None = None, **arguments: Any) -> Any:
        answer = self.env.call_tool(tool, arguments, timeout or 3 * PATIENCE)
        assert not answer.is_error, answer.text
        return answer.data

    def python(self, code: str) -> Any:
        """Run code in the instance's own process; return its variable ``result``."""
        answer = self.call("python", code=textwrap.dedent(code))
        assert "value" in answer, answer["text"]
        return answer["value"]

    def refused(self, code: str, *, forked: bool = False) -> str | None:
        """Return the errno name, or the exception, with which this code fails; None if it succeeds."""
        answer: dict[str, Any] = self.call("forked" if forked else "python", code=textwrap.dedent(code))
        return answer.get("raised")

    def syscall(self, number: int, *arguments: int) -> str | None:
        """Return the errno name, or the signal, that a system call ends with; None if it succeeds."""
        answer: dict[str, Any] = self.call("syscall", number=number, arguments=list(arguments))
        return answer.get("raised")

    def shell(self, command: str) -> Any:
        """Run a shell command; return its ``code``, ``out`` and ``err``."""
        return self.call("shell", command=command)


@pytest.fixture(scope="session")
def platform(sandboxes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform for all tests of this folder, whose own environment has a secret."""
    start_shared_threads()
    with own_platform() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBE_SECRET", SECRET)
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        _settings(patch, started)
        yield started


@pytest.fixture(autouse=True)
def _on_our_platform(_no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch, platform: Platform) -> None:
    _settings(monkeypatch, platform)


def _settings(patch: pytest.MonkeyPatch, platform: Platform) -> None:
    for name in ("AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP", "AENV_SYSTEM_URL"):
        patch.delenv(name, raising=False)
    for name, value in platform.variables.items():
        patch.setenv(name, value)


@pytest.fixture(scope="session", params=["loaded", "forked"])
def boxes(request: pytest.FixtureRequest, platform: Platform) -> Iterator[tuple[Box, Box]]:
    """Two instances of one project: each has loaded its code itself, or both are forks of one preloaded parent."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as open_ones:
        _settings(patch, platform)
        made = []
        for number in range(4):
            own = "environment_variables" if request.param == "forked" else "arguments"
            options: dict[str, Any] = {"environment_variables": {"OWN": str(number)}, "arguments": [str(number)]}
            env = open_ones.enter_context(SyncEnvironment(str(PROBE), **{own: options[own]}))
            made.append(Box(env))
        *_, one, other = made  # the first creates of a project are not served by a preloaded parent
        loaded = {box.python(LOADED_AT) for box in (one, other)}
        assert len(loaded) == (1 if request.param == "forked" else 2)
        yield one, other


@pytest.fixture
def box(boxes: tuple[Box, Box]) -> Box:
    return boxes[0]


@pytest.fixture
def neighbour(boxes: tuple[Box, Box]) -> Box:
    return boxes[1]


@pytest.fixture
def fresh(platform: Platform) -> Iterator[Box]:
    """An unused instance."""
    with SyncEnvironment(str(PROBE)) as env:
        yield Box(env)


def make_project(parent: Path, code: str = "", *, name: str = "made", **deploy: Any) -> Path:
    """Create a project; without code it is a probe."""
    project = parent / name
    (project / "src").mkdir(parents=True)
    config = {"name": name, "version": "1.0.0", "deployConfig": deploy}
    (project / "config.json").write_text(json.dumps(config))
    text = textwrap.dedent(code) if code else (PROBE / "src" / "probe.py").read_text()
    (project / "src" / f"{name}_env.py").write_text(text)
    return project
