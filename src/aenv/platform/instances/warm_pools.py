"""Warm pools: instances of an environment that are kept ready before anyone asks for them.

A pool serves creates with the same arguments, variables and datasource, of the same user. It ends with its server, or
when it is deleted. The engine makes and keeps the sandboxes; they become instances when a create takes them.

What is kept ready counts against its owner's allowance. Instances come first: a pool is smaller than its size while
its owner's instances leave less room.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aenv.engines.base import Engine, SandboxSpec
from aenv.errors import AEnvError, NotFound, UsageError
from aenv.http.messages import Answer
from aenv.isolation.limits.cgroups import Limits
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.request_context import RequestContext, RouteEntry, body, ok
from aenv.schema import paths
from aenv.schema.instances import EnvPool, EnvPoolCreateRequest
from aenv.tracing.logging import getLogger

log = getLogger("pools")


@dataclass(slots=True)
class _WarmPool:
    """A pool of instances that are kept ready for one kind of request."""

    spec: SandboxSpec
    size: int
    caller: Caller
    target: int
    """Number to keep ready now: the size, or less while the allowance has no room."""
    applied: int
    """Number that the engine was told last."""
    resizing: asyncio.Task[None] | None = None


class Pools:
    """The warm pools of this server."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._pools: dict[tuple[str, str], _WarmPool] = {}
        """By account and ``name@version``."""
        instances.quota.on_change = self._fit

    @property
    def in_use(self) -> bool:
        """True while there is a pool."""
        return bool(self._pools)

    async def create(self, request: EnvPoolCreateRequest, caller: Caller) -> EnvPool:
        """Keep ``size`` instances ready, and return once the first is. An existing pool gets the new size.

        Raises:
            UsageError: the engine keeps no instances ready.
            QuotaExceeded: the caller's allowance is smaller.
        """
        engine = self._engine()
        record = await self._instances.prepare(request.instance(), caller)
        key = caller.name, record.env_name
        others = [
            (pool.spec.limits, pool.size) for other, pool in self._pools.items() if other != key and other[0] == key[0]
        ]
        self._instances.quota.check(caller, record.limits, request.size, others)
        spec = self._instances.spec_of(record)
        before = self._pools.get(key)
        # Counted from here on, also by requests at the same time.
        self._pools[key] = _WarmPool(spec, request.size, caller, request.size, request.size)
        try:
            if before is not None and before.spec != spec:
                await engine.hold(before.spec, 0)
            await engine.hold(spec, request.size)
        except BaseException:
            if before is not None:
                self._pools[key] = before
            else:
                self._pools.pop(key, None)
            raise
        self._fit(caller.token_id)
        return self._to_api(caller.name, record.env_name)

    def list(self, caller: Caller) -> list[EnvPool]:
        """Return the pools that the caller may see."""
        return [self._to_api(account, env) for account, env in self._pools if caller.may_see(account)]

    async def delete(self, name: str, caller: Caller) -> None:
        """End a pool, named by ``name@version`` or by the name alone.

        Raises:
            NotFound: there is none.
        """
        found = [
            (account, env)
            for account, env in self._pools
            if caller.may_see(account) and name in (env, env.partition("@")[0])
        ]
        if not found:
            raise NotFound(f"no pool of {name[:100]}", details={"hint": "List them: aenv pool list"})
        for key in found:
            pool = self._pools.pop(key)
            if pool.resizing is not None:
                await pool.resizing
            await self._engine().hold(pool.spec, 0)

    def _fit(self, token_id: str) -> None:
        """Fit the pools of a token to the room that its instances leave."""
        if not token_id or not self._pools:
            return
        beside: list[tuple[Limits, int]] = []
        for pool in self._pools.values():
            if pool.caller.token_id != token_id:
                continue
            pool.target = self._instances.quota.room(pool.caller, pool.spec.limits, pool.size, beside)
            beside.append((pool.spec.limits, pool.target))
            if pool.target != pool.applied and pool.resizing is None:
                pool.resizing = asyncio.create_task(self._resize(pool))

    async def _resize(self, pool: _WarmPool) -> None:
        try:
            while pool.applied != pool.target:
                pool.applied = pool.target
                await self._engine().hold(pool.spec, pool.applied)
        except AEnvError as error:  # the next create meets it, too
            log.warning("the pool of %s was not resized: %s", pool.spec.name, error.message)
        finally:
            pool.resizing = None

    def _engine(self) -> Engine:
        engine = self._instances.engine
        if not engine.capabilities.pools:
            raise UsageError("this platform's engine keeps no instances ready")
        return engine

    def _to_api(self, account: str, env: str) -> EnvPool:
        pool = self._pools[account, env]
        return EnvPool(name=env, size=pool.size, ready=self._instances.engine.held(pool.spec), owner=account)


def pool_routes(pools: Pools) -> list[RouteEntry]:
    """Return the routes that create, list and delete pools."""

    async def create(context: RequestContext) -> Answer:
        return ok(await pools.create(body(EnvPoolCreateRequest, context.request), context.caller))

    async def list_all(context: RequestContext) -> Answer:
        return ok(pools.list(context.caller))

    async def delete(context: RequestContext) -> Answer:
        await pools.delete(context.name, context.caller)
        return ok("Deleted successfully")

    return [
        ("POST", paths.POOLS, "pool-create", create),
        ("GET", f"{paths.POOLS}/list", "pool-list", list_all),
        ("DELETE", f"{paths.POOLS}/{{name}}", "pool-delete", delete),
    ]
