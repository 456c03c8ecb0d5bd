"""SWE-bench: an agent makes a patch in one instance, and a second, untouched instance grades it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from aenv.authoring.failures.failure_reward import failure_reason
from aenv.bench.base import FAILURE, BenchJob, Benchmark, NoSolution, Result, WorkOf
from aenv.bench.stopwatch import measured
from aenv.bench.swe.dataset import load
from aenv.bench.swe.prepare import PreparedInstance, prepare
from aenv.errors import FunctionFailed, InstanceEnded, UsageError
from aenv.rollout.agents.scripted import nop
from aenv.rollout.attempt import Agent
from aenv.rollout.episode import Episode
from aenv.rollout.task_set import TaskSet
from aenv.sdk.environment import Environment

NETWORK = "blackhole"
"""Network of the instances. Tests of time-outs connect to addresses that do not answer; a refusal would fail them."""
TEST_SECONDS = 1800.0
MARGIN = 120.0
PATCH, _LOG, _REPORT = "patch.diff", "test.log", "report.json"


class SweBench(Benchmark):
    """SWE-bench: issues of real repositories."""

    name = "swe"
    summary = "SWE-bench: issues of real repositories, solved by patches"
    agents: ClassVar[Mapping[str, str]] = {
        "gold": "applies the patch that solved the issue",
        "empty": "does nothing",
        "nop": "does nothing",
        "CMD": "a program on this machine, with the instance's tools at $AENV_TASK_URL and $AENV_TASK_MCP_URL",
    }
    built_in = ("gold", "empty", "nop")
    """Agents that need no instance."""
    options: ClassVar[Mapping[str, str]] = {
        "instances": "a .json, .jsonl or .parquet file, a folder of tasks, or a dataset of the hub",
        "ids": "only these instances, separated by commas",
        "split": "split of a dataset of the hub; default: test",
        "repos": "folder with clones, or URL prefix of the repositories; default: https://github.com",
        "images": "no: prepare everything without the images of SWE-bench, even if they are available",
    }

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        if not options.get("instances"):
            raise UsageError("no instances given", {"hint": f"Use --instances: {self.options['instances']}."})
        if options.get("images") not in (None, "", "no"):
            raise UsageError(f"invalid images={options['images']!r}; expected 'no' or nothing")
        ids = [name.strip() for name in options.get("ids", "").split(",") if name.strip()]
        found = load(options["instances"], ids, options.get("split") or "test")
        self._instances = {instance.name: instance for instance in found}
        self._locks = {name: asyncio.Lock() for name in self._instances}

    def tasks(self) -> Sequence[str]:
        """Return the ids of the instances."""
        return list(self._instances)

    async def prepared(self, task: str) -> PreparedInstance:
        """Return the prepared projects of an instance."""
        async with self._locks[task]:
            use_image = self.given.get("images") != "no"
            return await prepare(self._instances[task], self.given.get("repos", ""), use_image=use_image)

    def gold_patch(self, task: str) -> str:
        """Return the patch that solves an instance; empty if it is not known."""
        return self._instances[task].gold

    def episodes(self, work: WorkOf) -> TaskSet:
        """Return the issues."""
        from aenv.bench.task_sets import SweTasks  # which imports this

        return SweTasks(self.given, self, work)

    def player(self, agent: str, work: WorkOf) -> Agent | None:
        """Return the agent that does nothing, or the one that gives the gold patch."""
        return (self._give_gold if agent == "gold" else nop) if agent in self.built_in else None

    async def _give_gold(self, episode: Episode) -> None:
        patch = self.gold_patch(episode.task.id)
        if not patch:
            raise NoSolution(f"{episode.task.id} has no gold patch")
        episode.env.patch = patch  # type: ignore[attr-defined]
        episode.note(patch=patch)

    async def grade(self, job: BenchJob) -> Result:
        """Grade the saved patch again."""
        file = job.folder / PATCH
        if not file.is_file():
            raise UsageError(f"{job.task}: no patch in {job.folder}", {"hint": "Run it first."})
        return await self.graded(job, file.read_bytes().decode(), Result(job.task))

    async def graded(self, job: BenchJob, patch: str, result: Result) -> Result:
        """Grade a patch."""
        await self._grade(job, await self.prepared(job.task), patch, result)
        return result

    async def _grade(self, job: BenchJob, prepared: PreparedInstance, patch: str, result: Result) -> None:
        try:
            with measured(result.seconds, "grade"):
                answer = await self._verdict(job, prepared, patch)
        except (FunctionFailed, InstanceEnded) as error:
            if not patch.strip() or error.fault == "infra":
                raise
            await self._verdict(job, prepared, "")  # raises if the tests do not run without the patch either
            result.reward, result.error = 0.0, f"the tests run, but not with the patch: {error.message}"
            return
        destroyed = failure_reason(answer)
        if destroyed is not None:
            result.reward, result.fault, result.error, result.outcome = FAILURE, "policy", destroyed, "destroyed"
            return
        _save(job.folder, answer)
        report = json.loads(answer["stdout"])[job.task]
        result.reward = float(answer["score"])
        tests = {
            kind: f"{len(found['success'])}/{len(found['success']) + len(found['failure'])}"
            for kind, found in report.get("tests_status", {}).items()
            if kind in ("FAIL_TO_PASS", "PASS_TO_PASS")
        }
        result.outputs |= {"resolved": report["resolved"], "applied": report["patch_successfully_applied"], **tests}
        result.outputs |= {"trusted": report["trusted"]}
        result.outputs |= {kind: report[kind] for kind in ("removed", "restored", "declared") if report.get(kind)}

    async def _verdict(self, job: BenchJob, prepared: PreparedInstance, patch: str) -> dict[str, Any]:
        arguments = {"instance": job.task, "model_patch": patch, "timeout": TEST_SECONDS}
        async with Environment(str(prepared.grade), network=NETWORK, ttl="4h") as env:
            answer: dict[str, Any] = await env.call_reward(arguments, timeout=2 * TEST_SECONDS + MARGIN)
            return answer


def _save(folder: Path, answer: Mapping[str, Any]) -> None:
    (folder / _LOG).write_text(str(answer["log"]))
    (folder / _REPORT).write_text(str(answer["stdout"]))
