"""The benchmark without an environment around it: its code in this process, one environment made for each task.

It does the least that its own code needs: makes the domain's environment, does the gold calls on it, and has its
evaluator grade them. Writes what each part took as JSON.

    python own.py DOMAIN TASK [--runs 5]
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "create"))
sys.path.insert(0, str(Path(__file__).parents[2] / "envs" / "tau2-env" / "src"))

import proc
import tau2_source

KEPT = 4
"""Environments that are held at once, to see what one more costs."""


def uss() -> float:
    return proc.memory([os.getpid()])["uss_mb"]


class Task:
    """One task, by the benchmark's own code."""

    def __init__(self, domain: str, name: str) -> None:
        from tau2.registry import registry

        self._domain = domain
        self.task = next(task for task in registry.get_tasks_loader(domain)() if name in ("", task.id))
        self._constructor = registry.get_env_constructor(domain)
        self._options = {"retrieval_variant": "bm25", "task": self.task} if domain == "banking_knowledge" else {}

    def make(self) -> Any:
        made = self._constructor(**self._options)
        start = self.task.initial_state
        made.set_state(start and start.initialization_data, start and start.initialization_actions, [])
        return made

    def play(self, environment: Any) -> list[Any]:
        from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage

        messages: list[Any] = []
        for action in self.task.evaluation_criteria.actions or []:
            who = action.requestor
            call = ToolCall(id=action.action_id, name=action.name, arguments=action.arguments, requestor=who)
            kind = AssistantMessage if who == "assistant" else UserMessage
            messages += [kind(role=who, tool_calls=[call]), environment.get_response(call)]
        return messages

    def grade(self, messages: list[Any]) -> None:
        from tau2.data_model.simulation import SimulationRun, TerminationReason
        from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

        run = SimulationRun(
            id="1", task_id=self.task.id, start_time="", end_time="", duration=0, messages=messages,
            termination_reason=TerminationReason.AGENT_STOP,
        )  # fmt: skip
        result = evaluate_simulation(run, self.task, EvaluationType.ALL, False, self._domain, env_kwargs=self._options)
        assert result.reward == 1.0, "the gold calls did not earn 1.0"


def measured(domain: str, name: str, runs: int) -> dict[str, Any]:
    began = time.perf_counter()
    import tau2.evaluator.evaluator  # noqa: F401

    found: dict[str, Any] = {"import": time.perf_counter() - began, "make": [], "play": [], "grade": []}
    task = Task(domain, name)

    def timed(part: str, work: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = work(*arguments)
        found[part].append(time.perf_counter() - began)
        return result

    for _ in range(runs):
        timed("grade", task.grade, timed("play", task.play, timed("make", task.make)))
    before = uss()
    held = [task.make() for _ in range(KEPT)]
    return {**found, "uss_mb": before, "one_more_mb": (uss() - before) / len(held), "task": task.task.id}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("domain")
    parser.add_argument("task")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    problem = tau2_source.find()
    if problem:
        sys.exit(problem)
    print(json.dumps(measured(args.domain, args.task, args.runs)))


if __name__ == "__main__":
    main()
