"""One task, turn by turn. The name begins with an underscore so that it is not loaded where there is no benchmark."""

import ast
import json
import uuid
from importlib import resources
from typing import Any

from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (
    multi_turn_checker,
    multi_turn_irrelevance_checker,
)
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

DATA = resources.files("bfcl_eval") / "data"
CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
"""What the benchmark says in the turn in which functions are added."""


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines() if line.strip()]


def names() -> list[str]:
    """All tasks."""
    return [row["id"] for category in CATEGORIES for row in _rows(f"BFCL_v4_{category}.json")]


class Episode:
    """From the first request to the verdict."""

    def __init__(self, task: str) -> None:
        category = task.rpartition("_")[0]
        rows = _rows(f"BFCL_v4_{category}.json") if category in CATEGORIES else []
        found = next((row for row in rows if row["id"] == task), None)
        if found is None:
            raise ValueError(f"BFCL_TASK: there is no task {task!r}; they are called like {CATEGORIES[0]}_0")
        answers = _rows(f"possible_answer/BFCL_v4_{category}.json")
        self.task, self._row = task, found
        self._wanted: list[list[str]] = next(row["ground_truth"] for row in answers if row["id"] == task)
        self._calls: list[list[list[str]]] = [[]]
        self.done = False

    @property
    def turn(self) -> int:
        """Which it is now, from 0."""
        return len(self._calls) - 1

    @property
    def turns(self) -> int:
        """How many there are."""
        return len(self._row["question"])

    @property
    def systems(self) -> list[str]:
        """The simulated systems that the task is about."""
        return list(self._row["involved_classes"])

    @property
    def request(self) -> str:
        """What the user says now."""
        said = self._row["question"][self.turn]
        return "\n".join(message["content"] for message in said) if said else MORE_FUNCTIONS

    def functions(self) -> dict[str, dict[str, Any]]:
        """All that can be called in this task."""
        left_out = self._row.get("excluded_function") or []
        return {
            described["name"]: described
            for system in self.systems
            for described in _rows(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[system]}")
            if described["name"] not in left_out
        }

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run one call; what came of it."""
        if self.done:
            raise ValueError("the task is over")
        if self.turn < self._first_turn_of(name):
            raise ValueError(f"there is no function {name} yet")
        written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        self._calls[-1].append([f"{name}({written})"])
        (answer,), _ = self._run(self._calls[-1][-1], "agent")
        try:
            return json.loads(answer)
        except ValueError:
            return answer

    def _first_turn_of(self, name: str) -> int:
        """Some functions come later. One task's own solution uses one before it comes: there, it is there."""
        added = (int(turn) for turn, later in (self._row.get("missed_function") or {}).items() if name in later)
        used = (turn for turn, calls in enumerate(self._wanted) if any(call.startswith(f"{name}(") for call in calls))
        return min(max(added, default=0), min(used, default=self.turns))

    def _run(self, calls: list[str], who: str) -> tuple[list[str], dict[str, Any]]:
        return execute_multi_turn_func_call(  # type: ignore[no-any-return]
            calls,
            self._row["initial_config"],
            self.systems,
            who,
            self.task,
            long_context="long_context" in self.task,
        )

    def end_turn(self) -> dict[str, Any]:
        """On to the next request."""
        if not self.done:
            if len(self._calls) == self.turns:
                self.done = True
            else:
                self._calls.append([])
        return {"done": True} if self.done else {"done": False, "request": self.request}

    def solution(self) -> list[dict[str, Any]]:
        """The benchmark's own."""
        found: list[dict[str, Any]] = []
        for turn in self._wanted:
            for written in turn:
                call = ast.parse(written, mode="eval").body
                assert isinstance(call, ast.Call)
                assert isinstance(call.func, ast.Name)
                names = list(self.functions()[call.func.id]["parameters"]["properties"])
                by_place = dict(zip(names, call.args, strict=False))
                by_name = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
                arguments = {name: ast.literal_eval(value) for name, value in {**by_place, **by_name}.items()}
                found.append({"tool": call.func.id, "arguments": arguments})
            found.append({"tool": "end_turn", "arguments": {}})
        return found

    def graded(self) -> dict[str, Any]:
        """By the benchmark. It keeps its systems by name for the life of the process, so each grading has another."""
        calls = [*self._calls, *([] for _ in range(self.turns - len(self._calls)))]
        checks = (
            multi_turn_checker(calls, self._wanted, self._row, self.task, f"graded_{uuid.uuid4().hex}"),
            multi_turn_irrelevance_checker(calls, self._wanted),
        )
        wrong = next((check for check in checks if not check["valid"]), None)
        report = {"score": 0.0 if wrong else 1.0, "turns_played": len(self._calls), "do_nothing_reward": 0.0}
        if wrong:
            report |= {"error_type": wrong["error_type"], "error": str(wrong.get("error_message"))}
        return report
