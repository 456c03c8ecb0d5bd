"""The benchmark's own log parsers and rules, without the rest of its harness.

The package's harness imports Docker's, Modal's and Hugging Face's clients as soon as any part of it is imported. What
grades needs none of them: its modules are loaded as parts of an empty package of the same name.
"""

import functools
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from _repository import IN_SANDBOX, PROJECT, ready

HIDDEN = PROJECT / "hidden" / "instance.json"
NEEDED = ("instance_id", "base_commit", "test_patch", "eval_script", "log_parser", "FAIL_TO_PASS", "PASS_TO_PASS")


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("swebench") is not None


def _module(name: str) -> Any:
    if not installed():
        raise RuntimeError("the package swebench is not installed: pip install swebench")
    package = importlib.import_module("swebench")
    if "swebench.harness" not in sys.modules:
        bare = ModuleType("swebench.harness")
        bare.__path__ = [str(Path(next(iter(package.__path__))) / "harness")]
        sys.modules["swebench.harness"] = bare
    return importlib.import_module(name)


@functools.cache
def _hidden() -> dict[str, Any]:
    """What was prepared for grading. Code of a patch runs in this sandbox, so the file is gone once it is read."""
    if not HIDDEN.is_file():
        return {}
    found: dict[str, Any] = json.loads(HIDDEN.read_text())
    if IN_SANDBOX:
        HIDDEN.parent.chmod(0o700)
        HIDDEN.unlink()
    return found


def row(instance: str | dict[str, Any]) -> dict[str, Any]:
    """All about an instance, the tests that decide included."""
    if isinstance(instance, dict):
        found = dict(instance)
    elif _hidden():
        found = dict(_hidden())
        if found["instance_id"] != instance:
            raise ValueError(f"this instance was prepared for {found['instance_id']}, not for {instance}")
    else:
        raise ValueError(f"{instance} was not prepared for grading here: give the whole row of the dataset")
    missing = [name for name in NEEDED if not found.get(name) and name != "PASS_TO_PASS"]
    if missing:
        raise ValueError(f"{found.get('instance_id')}: the row has no {', '.join(missing)}")
    task = ready()
    if task["base_commit"] != found["base_commit"]:
        raise ValueError(f"the repository here is at {task['base_commit']}, not at {found['base_commit']}")
    return found


class Grader:
    """Reads logs of one instance. What it needs is loaded before anything of the patch runs."""

    def __init__(self, instance: dict[str, Any]) -> None:
        self._grading = _module("swebench.harness.grading")
        types = _module("swebench.types")
        tests = {name: as_list(instance.get(name)) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
        self.spec = types.TestSpec(
            instance_id=instance["instance_id"],
            image=instance.get("image") or "",
            eval_script_list=[],
            repo=instance.get("repo") or "",
            version=str(instance.get("version") or ""),
            log_parser=instance["log_parser"],
            eval_type=instance.get("eval_type") or "pass_and_fail",
            **tests,
        )

    def statuses(self, text: str) -> dict[str, str]:
        """What each test did, as the benchmark reads it."""
        found: dict[str, str] = self._grading.PARSER_REGISTRY[self.spec.log_parser](text, self.spec)
        return found

    def report(self, patch: str | None, log: str) -> dict[str, Any]:
        """The benchmark's verdict."""
        prediction = {"instance_id": self.spec.instance_id, "model_patch": patch, "model_name_or_path": "aenv"}
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(log)
            file.flush()
            found: dict[str, Any] = self._grading.get_eval_report(self.spec, prediction, file.name, True)
        return found


def as_list(value: Any) -> list[str]:
    """Names of tests, as datasets have them: a list, or its JSON."""
    return list(json.loads(value)) if isinstance(value, str) else list(value or [])
