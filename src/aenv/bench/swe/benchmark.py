"""SWE-bench: an agent makes a patch in one instance, and a second, untouched instance grades it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from aenv.authoring.failure_reward import failure_reason
from aenv.bench import agent_bridge
from aenv.bench.base import FAILURE, BenchJob, Benchmark, Result
from aenv.bench.swe.dataset import Instance, load
from aenv.bench.swe.prepare import PreparedInstance, prepare
from aenv.errors import FunctionFailed, InstanceEnded, UsageError
from aenv.sdk.environment import Environment

NETWORK = "blackhole"
"""Network of the instances. Tests of time-outs connect to addresses that do not answer; a refusal would fail them."""
TEST_SECONDS = 1800.0
MARGIN = 120.0
_PATCH, _LOG, _REPORT = "patch.diff", "test.log", "report.json"


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

    async def run(self, job: BenchJob) -> Result:
        """Run the agent, then grade its patch."""
        result = Result(job.task)
        clock = time.monotonic()
        prepared = await self.prepared(job.task)
        result.seconds["prepare"] = _since(clock)
        result.outputs |= {"image": prepared.image} if prepared.image else {}
        clock = time.monotonic()
        patch = await self._patch(job, self._instances[job.task], prepared, result)
        result.seconds["agent"] = _since(clock)
        (job.folder / _PATCH).write_text(patch, newline="")
        await self._grade(job, prepared, patch, result)
        return result

    async def grade(self, job: BenchJob) -> Result:
        """Grade the saved patch again."""
        file = job.folder / _PATCH
        if not file.is_file():
            raise UsageError(f"{job.task}: no patch in {job.folder}", {"hint": "Run it first."})
        result = Result(job.task)
        await self._grade(job, await self.prepared(job.task), file.read_bytes().decode(), result)
        return result

    async def _patch(self, job: BenchJob, instance: Instance, prepared: PreparedInstance, result: Result) -> str:
        if job.agent in ("empty", "nop"):
            return ""
        if job.agent == "gold":
            if not instance.gold:
                raise UsageError(f"{job.task} has no gold patch")
            return instance.gold
        async with Environment(str(prepared.agent), network=NETWORK, ttl="4h") as env:
            task: dict[str, Any] = await env.call_function("get_task", {})
            await agent_bridge.run_agent(job, env, task["instruction"], result.calls.append)
            patch: str = await env.call_function("get_patch", {}, timeout=MARGIN)
            return patch

    async def _grade(self, job: BenchJob, prepared: PreparedInstance, patch: str, result: Result) -> None:
        clock = time.monotonic()
        try:
            answer = await self._verdict(job, prepared, patch)
        except (FunctionFailed, InstanceEnded) as error:
            if not patch.strip() or error.fault == "infra":
                raise
            await self._verdict(job, prepared, "")  # raises if the tests do not run without the patch either
            result.reward, result.error = 0.0, f"the tests run, but not with the patch: {error.message}"
            return
        finally:
            result.seconds["grade"] = _since(clock)
        destroyed = failure_reason(answer)
        if destroyed is not None:
            result.reward, result.fault, result.error = FAILURE, "policy", destroyed
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


def _since(clock: float) -> float:
    return round(time.monotonic() - clock, 3)
