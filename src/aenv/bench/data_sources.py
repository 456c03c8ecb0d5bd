"""Sources of the data of each benchmark, pinned by its hashes: scores on other data cannot be compared."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from aenv.bench.pinned_data import Checkout, PinnedFile
from aenv.errors import ConfigError

_CHALLENGES = PurePosixPath("inspect_evals/terminal_bench_2/challenges")
_MOST = 1 << 30
"""Bytes of the unpacked tasks."""

TAU2 = Checkout(
    "tau2-bench",
    "https://github.com/sierra-research/tau2-bench",
    "a2c024725189473d2d7cea3a5cfdbcc67478e41f",
    "13a11f0fa64aeb83e8030e371673528af0967141",
    "AENV_TAU2_SOURCE",
)
SWE = Checkout(
    "swe-bench-tasks",
    "https://github.com/SWE-bench/swe-bench-tasks",
    "3d07b464b7b311a0cbfb5ed5b2d8a3b96f84a33d",
    "4bf3e75187bbe4798cdf20be88b12b6e7ca910c4",
    "--instances",
)


def unpack_terminal_bench(wheel: Path, folder: Path) -> None:
    """Write the tasks of Terminal-Bench 2.0 that the wheel has, each as a folder in the Harbor format.

    The wheel keeps instruction and limits of a task in eval.yaml, and its other files as they are.
    """
    yaml = _yaml()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [each for each in archive.infolist() if PurePosixPath(each.filename).is_relative_to(_CHALLENGES)]
            if sum(each.file_size for each in members) > _MOST:
                raise ConfigError(f"{wheel.name} is larger than {_MOST} bytes when unpacked")
            for member in members:
                name = PurePosixPath(member.filename).relative_to(_CHALLENGES)
                if member.is_dir() or ".." in name.parts or len(name.parts) < 2:
                    continue
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(member))
                if member.external_attr >> 16 & 0o100:
                    target.chmod(0o755)
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{wheel.name}: {error}") from None
    for task in folder.iterdir():
        _write_harbor(task, yaml.safe_load((task / "eval.yaml").read_text()))


def _write_harbor(task: Path, about: dict[str, Any]) -> None:
    facts = about.get("metadata") or {}
    lines = ['version = "1.0"', "", "[agent]", f"timeout_sec = {float(facts.get('agent_timeout_sec') or 900)}"]
    lines += ["", "[verifier]", f"timeout_sec = {float(facts.get('verifier_timeout_sec') or 900)}", "", "[metadata]"]
    lines += [f"{name} = {json.dumps(str(facts[name]))}" for name in ("difficulty", "category") if name in facts]
    (task / "task.toml").write_text("\n".join(lines) + "\n")
    (task / "instruction.md").write_text(about["variants"]["default"]["prompt"])


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(
            "reading the tasks needs the package pyyaml", {"hint": "Install it: pip install 'aenvironment[bench]'"}
        ) from None
    return yaml


TERMINAL = PinnedFile(
    "terminal-bench-2",
    "https://files.pythonhosted.org/packages/py3/i/inspect_evals/inspect_evals-0.3.106-py3-none-any.whl",
    "5c083e58fc6444a5eaae111870aa7026886afcf6ecd3d422e0ea817f3b35de81",
    unpack_terminal_bench,
    "--tasks",
)
