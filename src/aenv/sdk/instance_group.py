"""Wait for the instances of a batch, and delete them, with few requests: one for all instead of one for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aenv.errors import EnvironmentTimeoutError, NotFound, Unavailable

if TYPE_CHECKING:
    from aenv.client.platform_client import ApiClient
    from aenv.schema.instances import EnvInstance


class InstanceGroup:
    """Collects the waits and deletes of instances that were created together on the local platform.

    Deletes are collected until the event loop has run all tasks that are ready.
    """

    def __init__(self) -> None:
        self._starting: dict[str, asyncio.Future[EnvInstance]] = {}
        self._releasing: dict[str, asyncio.Future[None]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def wait(self, api: ApiClient, instance_id: str, timeout: float) -> EnvInstance:
        """Return an instance once it runs.

        Raises:
            EnvironmentTimeoutError: it does not run after ``timeout`` seconds.
            AEnvError: it failed or ended, or the platform cannot be asked.
        """
        started: asyncio.Future[EnvInstance] = asyncio.get_running_loop().create_future()
        self._starting[instance_id] = started
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(api))
        try:
            async with asyncio.timeout(timeout):
                return await started
        except TimeoutError as error:
            if started.done() and not started.cancelled():
                raise  # it is the error of the instance
            raise EnvironmentTimeoutError(
                f"instance {instance_id} is still starting after {timeout:g} s",
                details={"budget": "startup", "seconds": timeout},
            ) from error
        finally:
            self._starting.pop(instance_id, None)

    async def _poll(self, api: ApiClient) -> None:
        from aenv.client.platform_client import failed_to_start

        await asyncio.sleep(0)  # so that all tasks of the batch have asked
        while self._starting:
            try:
                found, missing = await api.wait_for_any(list(self._starting))
            except Exception as error:
                for name in list(self._starting):
                    self._resolve(name, error)
                return
            for instance in found:
                self._resolve(instance.id, instance if instance.status == "Running" else failed_to_start(instance))
            for name in missing:
                self._resolve(name, NotFound(f"no instance {name}"))

    def _resolve(self, name: str, outcome: EnvInstance | Exception) -> None:
        started = self._starting.pop(name, None)
        if started is None or started.done():
            return
        if isinstance(outcome, Exception):
            started.set_exception(outcome)
        else:
            started.set_result(outcome)

    async def delete(self, api: ApiClient, instance_id: str) -> None:
        """Delete an instance; return when it is gone.

        Raises:
            AEnvError: it could not be deleted.
        """
        loop = asyncio.get_running_loop()
        if not self._releasing:
            loop.call_soon(self._send, api)
        gone = self._releasing.get(instance_id)
        if gone is None:
            gone = self._releasing[instance_id] = loop.create_future()
            # Retrieve the error: the caller may have been cancelled.
            gone.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(gone)

    def _send(self, api: ApiClient) -> None:
        waiting, self._releasing = self._releasing, {}
        task = asyncio.create_task(_delete(api, waiting))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


async def _delete(api: ApiClient, waiting: dict[str, asyncio.Future[None]]) -> None:
    failed: dict[str, str] = {}
    try:
        if len(waiting) == 1:
            await api.delete_env_instance(*waiting)
        else:
            failed = await api.delete_env_instances(list(waiting))
    except Exception as error:
        for gone in waiting.values():
            gone.set_exception(error)
        return
    for name, gone in waiting.items():
        if name in failed:
            gone.set_exception(Unavailable(failed[name]))
        else:
            gone.set_result(None)
