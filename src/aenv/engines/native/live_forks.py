"""Live forks of running sandboxes, as the engine sees them: bring to rest, have the zygote fork, go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Exit, ForkSpec, SandboxRef
from aenv.engines.native.sandbox_factory import SandboxFactory
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.engines.teardown import finish
from aenv.errors import AEnvError, ForkRefused
from aenv.http.url import ServerUrl
from aenv.schema import paths

PARK_SECONDS = 20.0
"""For an instance to come to rest, beyond the wait for its calls: its hooks run in this time."""
AT_ONCE = 2
"""Forks of one request that the zygote has at a time. It may copy files for seconds, and what others want, such as the
end of an instance, has to come in between."""


class LiveForks:
    """Forks sandboxes and checkpoints of one factory."""

    def __init__(self, factory: SandboxFactory) -> None:
        self._factory = factory

    async def fork(
        self, source: SandboxHandle, wanted: Sequence[ForkSpec], wait: float
    ) -> list[SandboxRef | AEnvError]:
        """Fork a sandbox or a checkpoint; see `Engine.fork`."""
        if not source.spec.forkable:
            raise ForkRefused("this instance was not made to be forked: create it with forkable=True")
        if source.checkpoint:
            return await self._forks(source, wanted)
        async with source.forking:
            await _park(source, wait)
            await source.zygote.hold(source.id)
            try:
                return await self._forks(source, wanted)
            finally:
                source.zygote.release(source.id)

    async def _forks(self, source: SandboxHandle, wanted: Sequence[ForkSpec]) -> list[SandboxRef | AEnvError]:
        handles = [self._handle(source, each) for each in wanted]
        turns = asyncio.Semaphore(AT_ONCE)
        tasks = [
            asyncio.create_task(self._one(handle, each, turns)) for handle, each in zip(handles, wanted, strict=True)
        ]
        try:
            for handle in handles:  # the zygote forks them in turn, then lets the parent go on
                await handle.requested.wait()
            if not source.checkpoint:
                source.zygote.release(source.id)
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for handle in handles:  # those that were made already
                if handle.id in self._factory.sandboxes:
                    await finish(self._factory.end(handle))
            raise

    def _handle(self, source: SandboxHandle, wanted: ForkSpec) -> SandboxHandle:
        spec = replace(source.spec, variables=wanted.variables)
        token = wanted.takes_over.token if wanted.takes_over is not None else ""
        handle = self._factory.new_handle(spec, source.zygote, token=token)
        handle.fork_of = source.id
        handle.checkpoint = wanted.checkpoint
        return handle

    async def _one(self, handle: SandboxHandle, wanted: ForkSpec, turns: asyncio.Semaphore) -> SandboxRef | AEnvError:
        """Make one fork; return the error if that fails."""
        self._factory.sandboxes[handle.id] = handle
        op = "checkpoint" if wanted.checkpoint else "fork"
        try:
            await self._turn(handle, turns)
            try:
                answer = await handle.zygote.spawn(handle, op, imports_code=False)
            finally:
                turns.release()
            handle.ref = replace(handle.ref, healthy=bool(answer.get("healthy")))
            if wanted.takes_over is not None:
                self._take_over(handle, wanted.takes_over)
        except AEnvError as error:
            await finish(self._factory.end(handle))
            return error
        except BaseException:
            await finish(self._factory.end(handle))
            raise
        finally:
            handle.requested.set()
        return handle.ref

    async def _turn(self, handle: SandboxHandle, turns: asyncio.Semaphore) -> None:
        """Wait until the zygote may be asked for a fork. Where that is cancelled, nobody else would report its end."""
        try:
            await turns.acquire()
        except BaseException:
            handle.ended(Exit(-1, "it was never started"))
            raise

    def _take_over(self, handle: SandboxHandle, ref: SandboxRef) -> None:
        """Put the socket of a fork in the place of another's."""
        before = self._factory.sandboxes.get(ref.id)
        if before is None:
            return
        os.rename(handle.path, before.path)
        handle.path, before.path = before.path, handle.path
        handle.ref = replace(handle.ref, data_url=ref.data_url)


async def _park(source: SandboxHandle, wait: float) -> None:
    client = InstanceClient(ServerUrl.parse(source.ref.data_url), token=source.ref.token, patience=0.0)
    try:
        await client.call(paths.PARK, {"wait": wait}, timeout=wait + PARK_SECONDS)
    finally:
        client.close()
