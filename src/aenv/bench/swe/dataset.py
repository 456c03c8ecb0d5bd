"""Load the rows of SWE-bench's datasets from a file, from folders of tasks, or from the datasets hub.

A row contains the repository, the issue, the deciding tests and the command to run them. The Python version and the
packages come from the task's folder (environment.yml) or from the row (``python``, ``requirements``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.errors import ConfigError, UsageError

PUBLIC = ("instance_id", "repo", "base_commit", "version", "problem_statement")
"""Columns of a row that an agent may see."""
_NEEDED = ("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "eval_script", "log_parser")
_FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
_PIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[\w,]+\])?==[A-Za-z0-9.!+_-]+$")
_CONDA = re.compile(r"([\w.-]+)=([\w.]+)(?:=(\w+))?")
"""Name, version and build of a conda package; builds of Python packages begin with the Python version."""
_FLAT = re.compile(r"^(?P<key>\w+):[ \t]+(?P<value>\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Instance:
    """An issue with everything that is needed to solve and grade it."""

    row: dict[str, Any]
    python: str
    """Python version of its tests, like 3.9; empty: any."""
    pins: tuple[str, ...]
    """Pinned packages."""
    build: tuple[str, ...] = ()
    """Pinned packages for installing the repository itself."""

    @property
    def name(self) -> str:
        """Id of the instance."""
        return str(self.row["instance_id"])

    @property
    def gold(self) -> str:
        """Patch that solved the issue."""
        return str(self.row.get("patch") or "")


def load(source: str, wanted: Iterable[str] = (), split: str = "test") -> list[Instance]:
    """Return all instances of a source, or the ``wanted`` ones, in the order of the source.

    Raises:
        UsageError: the source or an instance does not exist.
        ConfigError: a row is incomplete.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files = _downloaded(path, split)
        rows = [_from_row(row, str(file)) for file in files for row in _rows(file)]
        found = rows if files else _from_folders(path, set(wanted))
    elif path.suffix in (".json", ".jsonl", ".parquet"):
        if not path.is_file():
            raise UsageError(f"no such file: {source}")
        found = [_from_row(row, str(path)) for row in _rows(path)]
    else:
        found = [_from_row(row, source) for row in _from_hub(source, split)]
    names = [instance.name for instance in found]
    for name in wanted:
        if name not in names:
            raise UsageError(f"{source} has no instance {name}", {"hint": f"It has: {', '.join(names[:5])}..."})
    chosen = [instance for instance in found if not wanted or instance.name in wanted]
    if not chosen:
        raise UsageError(f"no instances in {source}")
    return chosen


def _downloaded(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in the folder of a downloaded dataset."""
    places = [place for place in (folder, folder / "data") if place.is_dir()]
    found = [path for place in places for path in place.iterdir() if path.suffix in (".parquet", ".jsonl", ".json")]
    return sorted(path for path in found if re.match(rf"{re.escape(split)}(-\d|\.)", path.name))


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        data = path.read_bytes()
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in data.splitlines() if line.strip()]
        whole = json.loads(data)
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return list(whole.values()) if isinstance(whole, dict) and "instance_id" not in whole else _as_list(whole)


def _as_list(whole: Any) -> list[dict[str, Any]]:
    return whole if isinstance(whole, list) else [whole]


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        hint = "Install it: pip install 'aenvironment[bench]'"
        raise UsageError(f"reading {path} needs the package pyarrow", {"hint": hint}) from None
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _from_hub(name: str, split: str) -> list[dict[str, Any]]:
    sources = (
        "Name a .json, .jsonl or .parquet file, a folder that a dataset was downloaded to, a folder of tasks (as in "
        "the repository SWE-bench/swe-bench-tasks), or a dataset of the hub such as SWE-bench/SWE-bench_Verified."
    )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"no such file or folder: {name}", {"hint": sources})
    try:
        from datasets import load_dataset
    except ModuleNotFoundError:
        hint = f"pip install datasets; or, without it: {sources}"
        raise UsageError(f"datasets of the hub, like {name}, need the package datasets", {"hint": hint}) from None
    try:
        return [dict(row) for row in load_dataset(name, split=split)]
    except Exception as error:
        hint = (
            "If the hub cannot be reached, set HF_HOME to a Hugging Face cache that contains the dataset, "
            f"and HF_HUB_OFFLINE=1. {sources}"
        )
        raise UsageError(f"{name} cannot be loaded from the datasets hub: {error}", {"hint": hint}) from None


def _from_folders(path: Path, wanted: set[str]) -> list[Instance]:
    """Read the folder of a task, a folder of tasks, or a checkout of swe-bench-tasks."""
    if (path / "task.yaml").is_file():
        return [_from_folder(path)]
    top = path / "tasks" if (path / "tasks").is_dir() else path
    folders = sorted(file.parent for file in top.glob("*/task.yaml"))
    return [_from_folder(folder) for folder in folders if not wanted or folder.name in wanted]


def _from_folder(folder: Path) -> Instance:
    try:
        row: dict[str, Any] = {
            found["key"]: found["value"].strip().strip("'\"")
            for found in _FLAT.finditer((folder / "task.yaml").read_text(encoding="utf-8"))
        }
        for column, name in _FILES.items():
            row[column] = (folder / name).read_bytes().decode(errors="replace")  # keep the line ends of patches
        row |= json.loads((folder / "tests.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is not a task: {Path(str(error.filename)).name} is missing") from None
    except ValueError as error:
        raise ConfigError(f"{folder / 'tests.json'} cannot be read: {error}") from None
    packages = folder / "environment.yml"
    if packages.is_file():
        row |= _environment(packages.read_text(encoding="utf-8"))
    return _from_row(row, str(folder))


def _environment(text: str) -> dict[str, Any]:
    """Return the Python version, the build tools and the other Python packages of a conda environment file."""
    lines = [line.strip().removeprefix("- ").strip() for line in text.splitlines()]
    conda = {found[1]: (found[2], found[3] or "") for line in lines if (found := _CONDA.fullmatch(line))}
    versions = {name: version for name, (version, build) in conda.items() if build.startswith("py")}
    build = [f"{name}=={versions.pop(name)}" for name in ("pip", "setuptools", "wheel") if name in versions]
    return {
        "python": ".".join(conda.get("python", ("",))[0].split(".")[:2]),
        "requirements": [
            *(f"{name}=={version}" for name, version in versions.items()),
            *(line for line in lines if _PIN.fullmatch(line)),
        ],
        "build_requirements": build,
    }


def _from_row(row: Any, where: str) -> Instance:
    if not isinstance(row, dict) or not row.get("instance_id"):
        raise ConfigError(f"{where}: an instance has no instance_id")
    missing = [name for name in _NEEDED if not row.get(name)]
    if missing:
        raise ConfigError(
            f"{where}: {row['instance_id']} has no {', '.join(missing)}",
            {"hint": "Use the datasets of SWE-bench 5, whose rows contain the commands of their tests."},
        )
    return Instance(
        row,
        str(row.get("python") or ""),
        tuple(row.get("requirements") or ()),
        tuple(row.get("build_requirements") or ()),
    )
