"""Parse tasks of Terminal-Bench 1 (task.yaml) and of the Harbor format (task.toml) into one model."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aenv.bench.terminal import compose as services
from aenv.bench.terminal.compose import Compose
from aenv.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MEMORY = 4 << 30
SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class TerminalTask:
    """A terminal task."""

    name: str
    folder: Path
    format: Literal["harbor", "terminal-bench-1"]
    instruction: str
    dockerfile: Path
    context: Path
    agent_seconds: float = SECONDS
    verifier_seconds: float = SECONDS
    cpus: float = 1.0
    memory: int = MEMORY
    internet: bool = True
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the task's container."""
    verifier_variables: dict[str, str] = field(default_factory=dict)
    solution_variables: dict[str, str] = field(default_factory=dict)
    compose: Compose = field(default_factory=Compose)
    agent_programs: tuple[str, ...] = ()
    """Programs of the image that the agent is supposed to replace: the verifier runs the agent's version."""

    @property
    def tests(self) -> list[tuple[Path, str]]:
        """Files of the verifier, and their names below /tests."""
        if self.format == "harbor":
            return [(self.folder / "tests", ".")]
        return [(self.folder / "tests", "."), (self.folder / "run-tests.sh", "run-tests.sh")]

    @property
    def verifier(self) -> str:
        """Path of the grading script in the container."""
        return "/tests/test.sh" if self.format == "harbor" else "/tests/run-tests.sh"

    @property
    def script(self) -> str:
        """Text of the grading script."""
        path = self.folder / ("tests/test.sh" if self.format == "harbor" else "run-tests.sh")
        return path.read_text(errors="replace")

    @property
    def solution(self) -> tuple[Path, str, str]:
        """Files of the task's own solution, their folder in the container, and the script to run."""
        if self.format == "harbor":
            return self.folder / "solution", "/solution", "/solution/solve.sh"
        return self.folder / "solution.sh", "/oracle", "/oracle/solution.sh"


def find(place: Path) -> list[TerminalTask]:
    """Return the task in a folder, or all tasks in its subfolders, sorted by name.

    Raises:
        ConfigError: there are none, or one cannot be read.
    """
    if not place.is_dir():
        raise ConfigError(f"no such folder: {place}")
    folders = [place] if is_task(place) else sorted(path for path in place.iterdir() if is_task(path))
    if not folders:
        raise ConfigError(
            f"no tasks in {place}",
            {"hint": "A task is a folder with a task.toml (Harbor) or a task.yaml (Terminal-Bench 1)."},
        )
    return [read(folder) for folder in folders]


def is_task(folder: Path) -> bool:
    """Return whether the folder has the settings of a task."""
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def read(folder: Path) -> TerminalTask:
    """Read the task in a folder.

    Raises:
        ConfigError: the task is incomplete or invalid.
    """
    folder = folder.resolve()
    try:
        return _read_harbor(folder) if (folder / "task.toml").is_file() else _read_terminal_bench_1(folder)
    except OSError as error:
        raise ConfigError(f"{folder.name}: {error.filename}: {error.strerror}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{folder.name}: invalid settings: {error}") from None


def _read_harbor(folder: Path) -> TerminalTask:
    about = tomllib.loads((folder / "task.toml").read_text())
    place = about.get("environment", {})
    context = folder / "environment"
    dockerfile = context / "Dockerfile"
    if not dockerfile.is_file():
        raise ConfigError(f"{folder.name}: environment/Dockerfile is missing")
    memory = place.get("memory_mb")
    return _check_complete(
        TerminalTask(
            folder.name, folder, "harbor", (folder / "instruction.md").read_text(), dockerfile, context,
            agent_seconds=float(about.get("agent", {}).get("timeout_sec") or SECONDS),
            verifier_seconds=float(about.get("verifier", {}).get("timeout_sec") or SECONDS),
            cpus=float(place.get("cpus") or 1),
            memory=int(memory) << 20 if memory else _size(place.get("memory") or MEMORY),
            internet=bool(place.get("allow_internet", True)),
            variables=_texts(place.get("env")),
            verifier_variables=_texts(about.get("verifier", {}).get("env")),
            solution_variables=_texts(about.get("solution", {}).get("env")),
            compose=_compose(context, "main"),
            agent_programs=_names(about.get("verifier", {}).get("agent_programs")),
        )
    )  # fmt: skip


def _read_terminal_bench_1(folder: Path) -> TerminalTask:
    about = _yaml(folder / "task.yaml")
    return _check_complete(
        TerminalTask(
            folder.name, folder, "terminal-bench-1", _instruction(about), folder / "Dockerfile", folder,
            agent_seconds=float(about.get("max_agent_timeout_sec") or SECONDS),
            verifier_seconds=float(about.get("max_test_timeout_sec") or SECONDS),
            compose=_compose(folder, "client"),
            agent_programs=_names(about.get("agent_programs")),
        )
    )  # fmt: skip


def _compose(folder: Path, own: str) -> Compose:
    """Return the additional containers; ``own`` is the service of the Dockerfile."""
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / name).is_file():
            return services.read(_yaml(folder / name), folder, own)
    return Compose()


def _check_complete(task: TerminalTask) -> TerminalTask:
    needed = [task.dockerfile, *(path for path, _ in task.tests)]
    missing = [str(path.relative_to(task.folder)) for path in needed if not path.exists()]
    if missing:
        raise ConfigError(f"{task.name}: missing: {', '.join(missing)}")
    return task


def _instruction(about: dict[str, Any]) -> str:
    """Return the instruction. Older tasks have several descriptions, of which the first applies."""
    described = about.get("descriptions") or [{}]
    return str(about.get("instruction") or described[0].get("description") or "")


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        hint = {"hint": "Install it: pip install 'aenvironment[bench]'"}
        raise ConfigError(f"{path} is a YAML file, and PyYAML is not installed", hint) from None
    try:
        found = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    return found if isinstance(found, dict) else {}


def _size(value: Any) -> int:
    found = _SIZE.fullmatch(str(value).strip())
    if found is None:
        raise ValueError(f"{value!r} is not an amount of memory")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _texts(values: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in (values or {}).items()}


def _names(values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values or ())
