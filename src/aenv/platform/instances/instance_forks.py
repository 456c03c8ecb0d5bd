"""Fork, checkpoint and rewind instances.

A checkpoint is a fork that stays stopped. It is recorded as an instance: it has an owner, a time to live and a lease,
counts against quota and capacity, and is deleted like one. A rewind replaces the sandbox of an instance by a fork of a
checkpoint, with the same address and token.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from aenv.engines.base import ForkSpec, SandboxRef
from aenv.engines.static_imports import SourceFiles
from aenv.errors import AEnvError, ForkRefused, NotFound, UsageError
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances.instance_record import InstanceRecord
from aenv.platform.instances.lifecycle import Instances
from aenv.schema.instances import (
    CheckpointRequest,
    EnvInstance,
    EnvInstanceCreateRequest,
    EnvStatus,
    ForkItem,
    ForkOutcome,
    InstanceForkRequest,
    RewindRequest,
)


@dataclass(frozen=True, slots=True)
class _Made:
    records: list[InstanceRecord]
    results: list[SandboxRef | AEnvError]


class InstanceForks:
    """Forks of the instances of one server."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._rewinding: set[str] = set()

    async def require(self, name: str, caller: Caller = OWNER) -> None:
        """Raise NotFound unless the caller may use the instance or checkpoint."""
        await self._instances.require(name, caller)

    async def fork(self, name: str, request: InstanceForkRequest, caller: Caller = OWNER) -> list[ForkOutcome]:
        """Fork a running instance or a checkpoint; return an instance or an error for each item.

        Raises:
            ForkRefused: it cannot be forked as it is.
        """
        source = await self._source(name, caller)
        requests = [_request(source, item, request) for item in request.items]
        made = await self._make(source, requests, request.wait, caller)
        outcomes = []
        for record, result in zip(made.records, made.results, strict=True):
            if isinstance(result, AEnvError):
                outcomes.append(ForkOutcome(error=result.message, code=result.code, fault=result.fault))
            else:
                outcomes.append(ForkOutcome(instance=record.to_api(caller)))
        return outcomes

    async def checkpoint(self, name: str, request: CheckpointRequest, caller: Caller = OWNER) -> EnvInstance:
        """Make a checkpoint of a running instance, which goes on."""
        source = await self._source(name, caller)
        if source.checkpoint is not None:
            raise UsageError(f"{name} is a checkpoint already")
        options = InstanceForkRequest(
            items=[ForkItem(ttl=request.ttl)], wait=request.wait, lease=request.lease, keep_alive=request.keep_alive
        )
        made = await self._make(
            source, [_request(source, options.items[0], options)], request.wait, caller, checkpoint=request.name
        )
        result = made.results[0]
        if isinstance(result, AEnvError):
            raise result
        return made.records[0].to_api(caller)

    async def rewind(self, name: str, request: RewindRequest, caller: Caller = OWNER) -> EnvInstance:
        """Replace the state of a running instance by that of a checkpoint. It keeps its id, address and token."""
        record = await self._source(name, caller)
        checkpoint = await self._source(request.checkpoint, caller)
        if checkpoint.checkpoint is None:
            raise UsageError(f"{checkpoint.id} is not a checkpoint")
        if record.checkpoint is not None:
            raise UsageError(f"{name} is a checkpoint, and stays as it is; fork it")
        if checkpoint.env_name != record.env_name or checkpoint.limits != record.limits:
            raise UsageError(f"{checkpoint.id} is a checkpoint of another kind of instance than {name}")
        if name in self._rewinding:
            raise ForkRefused(f"{name} is being rewound; wait for that")
        assert record.ref is not None
        assert checkpoint.ref is not None
        self._rewinding.add(name)
        try:
            wanted = ForkSpec(record.spec(SourceFiles()).variables, takes_over=record.ref)
            result = (await self._instances.engine.fork(checkpoint.ref, [wanted], wait=0.0))[0]
            if isinstance(result, AEnvError):
                raise result
            await asyncio.shield(self._instances.replace_sandbox(record, result, f"to {checkpoint.id}"))
        finally:
            self._rewinding.discard(name)
        return record.to_api(caller)

    async def branches(self, name: str, caller: Caller = OWNER) -> list[EnvInstance]:
        """Return the forks and checkpoints of an instance or checkpoint, and theirs, oldest first.

        Raises:
            NotFound: there is no such instance of the caller, nor a branch of one that has ended.
        """
        found = self._instances.family(name, caller)
        if not found:
            await self.require(name, caller)
        return [record.to_api(caller) for record in found]

    async def _source(self, name: str, caller: Caller) -> InstanceRecord:
        record = await self._instances.require(name, caller)
        await self._instances.check(record)
        if record.status is not EnvStatus.RUNNING or record.ref is None:
            raise ForkRefused(f"{name} has not started yet")
        if not self._instances.engine.capabilities.live_fork:
            raise ForkRefused(
                "this platform's engine cannot fork a running instance; repeat its calls on a new one instead"
            )
        if not record.request.forkable:
            raise ForkRefused(f"{name} was not made to be forked: create it with forkable=True")
        return record

    async def _make(
        self,
        source: InstanceRecord,
        requests: list[EnvInstanceCreateRequest],
        wait: float,
        caller: Caller,
        *,
        checkpoint: str | None = None,
    ) -> _Made:
        instances = self._instances
        records = await instances.admit_forks(source, requests, caller)
        began = time.perf_counter()
        try:
            wanted = []
            for record in records:
                if checkpoint is not None:
                    record.checkpoint = checkpoint or record.id
                variables = record.spec(SourceFiles()).variables
                wanted.append(ForkSpec(variables, checkpoint=checkpoint is not None))
            assert source.ref is not None
            results = await instances.engine.fork(source.ref, wanted, wait=wait)
        except BaseException as error:
            refused = error if isinstance(error, AEnvError) else ForkRefused(f"it could not be forked: {error!r}")
            for record in records:
                instances.fail_fork(record, refused)
            raise
        seconds = time.perf_counter() - began
        for number, record in enumerate(records):
            result = results[number]
            if isinstance(result, AEnvError):
                instances.fail_fork(record, result)
                continue
            try:
                await instances.begin_fork(record, result, seconds)
            except NotFound as error:
                results[number] = error
        return _Made(records, results)


def _request(source: InstanceRecord, item: ForkItem, options: InstanceForkRequest) -> EnvInstanceCreateRequest:
    """Return the create request of a fork: that of the instance, with what differs."""
    before = source.request
    labels = {**(before.labels or {}), **(item.labels or {})}
    return before.model_copy(
        update={
            "environment_variables": {**(before.environment_variables or {}), **(item.environment_variables or {})},
            "labels": labels or None,
            "ttl": item.ttl or before.ttl,
            "lease": options.lease,
            "keep_alive": options.keep_alive,
            "request_id": None,
            "items": None,
            "item": None,
            "count": None,
        }
    )
