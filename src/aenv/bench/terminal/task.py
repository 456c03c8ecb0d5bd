"""Tasks on disk: those of Terminal-Bench 1 (task.yaml) and of the Harbor format (task.toml), read into one shape."""

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
class Task:
    """One task."""

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
    """Of the box."""
    verifier_variables: dict[str, str] = field(default_factory=dict)
    solution_variables: dict[str, str] = field(default_factory=dict)
    compose: Compose = field(default_factory=Compose)
    agent_programs: tuple[str, ...] = ()
    """Names of programs that the image has, and that are the agent's to replace: the verifier runs what it has left."""

    @property
    def tests(self) -> list[tuple[Path, str]]:
        """What the verifier needs, and what it is called below /tests."""
        if self.format == "harbor":
            return [(self.folder / "tests", ".")]
        return [(self.folder / "tests", "."), (self.folder / "run-tests.sh", "run-tests.sh")]

    @property
    def verifier(self) -> str:
        """The script that grades, inside."""
        return "/tests/test.sh" if self.format == "harbor" else "/tests/run-tests.sh"

    @property
    def script(self) -> str:
        """The text of that script."""
        path = self.folder / ("tests/test.sh" if self.format == "harbor" else "run-tests.sh")
        return path.read_text(errors="replace")

    @property
    def solution(self) -> tuple[Path, str, str]:
        """What is needed for the task's own solution, where it belongs, and its script there."""
        if self.format == "harbor":
            return self.folder / "solution", "/solution", "/solution/solve.sh"
        return self.folder / "solution.sh", "/oracle", "/oracle/solution.sh"


def find(place: Path) -> list[Task]:
    """The task in a folder, or all tasks in the folders below it, by name.

    Raises:
        ConfigError: there are none, or one cannot be read.
    """
    if not place.is_dir():
        raise ConfigError(f"there is no folder {place}")
    folders = [place] if _is_task(place) else sorted(path for path in place.iterdir() if _is_task(path))
    if not folders:
        raise ConfigError(
            f"there are no tasks in {place}",
            {"hint": "A task is a folder with a task.toml (Harbor) or a task.yaml (Terminal-Bench 1)."},
        )
    return [read(folder) for folder in folders]


def _is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def read(folder: Path) -> Task:
    """The task in a folder.

    Raises:
        ConfigError: it is not whole.
    """
    folder = folder.resolve()
    try:
        return _harbor(folder) if (folder / "task.toml").is_file() else _first(folder)
    except OSError as error:
        raise ConfigError(f"{folder.name}: {error.filename}: {error.strerror}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{folder.name}: its settings make no sense: {error}") from None


def _harbor(folder: Path) -> Task:
    about = tomllib.loads((folder / "task.toml").read_text())
    place = about.get("environment", {})
    context = folder / "environment"
    dockerfile = context / "Dockerfile"
    if not dockerfile.is_file():
        raise ConfigError(f"{folder.name}: there is no environment/Dockerfile")
    memory = place.get("memory_mb")
    return _whole(
        Task(
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


def _first(folder: Path) -> Task:
    about = _yaml(folder / "task.yaml")
    return _whole(
        Task(
            folder.name, folder, "terminal-bench-1", _instruction(about), folder / "Dockerfile", folder,
            agent_seconds=float(about.get("max_agent_timeout_sec") or SECONDS),
            verifier_seconds=float(about.get("max_test_timeout_sec") or SECONDS),
            compose=_compose(folder, "client"),
            agent_programs=_names(about.get("agent_programs")),
        )
    )  # fmt: skip


def _compose(folder: Path, own: str) -> Compose:
    """Which other containers there are; ``own`` is the one of the Dockerfile."""
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / name).is_file():
            return services.read(_yaml(folder / name), folder, own)
    return Compose()


def _whole(task: Task) -> Task:
    needed = [task.dockerfile, *(path for path, _ in task.tests)]
    missing = [str(path.relative_to(task.folder)) for path in needed if not path.exists()]
    if missing:
        raise ConfigError(f"{task.name}: there is no {', no '.join(missing)}")
    return task


def _instruction(about: dict[str, Any]) -> str:
    """Older tasks have several, of which the first is the one that counts."""
    described = about.get("descriptions") or [{}]
    return str(about.get("instruction") or described[0].get("description") or "")


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        hint = {"hint": "Install what it takes: pip install 'aenvironment[bench]'"}
        raise ConfigError(f"{path} is written in YAML, and there is no PyYAML here", hint) from None
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
