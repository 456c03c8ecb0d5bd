"""Forks, checkpoints and rewinds of an `Environment`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aenv.errors import AEnvError, ForkRefused, InvalidUse, NotFound, from_answer
from aenv.sdk import arguments as checks
from aenv.sdk.batch import options_of_items
from aenv.sdk.circuit_breaker import CircuitBreaker
from aenv.sdk.placement import PlatformPlacement

if TYPE_CHECKING:
    from aenv.schema.instances import EnvInstance, ForkOutcome
    from aenv.sdk.environment import Environment

PER_FORK = ("environment_variables", "labels", "ttl", "seed")
"""Arguments that may differ between forks."""
_NOT_CARRIED = ("_client", "_rollout", "_initializing", "_open_processes", "_instance", "_last_instance")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stopped copy of an instance, to go back to. It is on the platform, and can be used by its id alone."""

    id: str
    name: str
    instance_id: str
    """The instance that it was taken of, which may have ended."""
    expires_at: str | None = None
    """Time at which its time to live runs out."""

    @classmethod
    def of(cls, record: EnvInstance) -> Checkpoint:
        """Return the checkpoint that a record of the platform describes."""
        return cls(record.id, record.checkpoint or record.id, record.forked_from or "", record.expires_at)


async def fork(
    env: Environment,
    n: int | None,
    *,
    items: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
    wait: float,
    source: str | None = None,
) -> list[Environment | AEnvError]:
    """Fork the instance of an environment, or a checkpoint (``source``)."""
    wanted = [_item(each) for each in options_of_items(n, items, options, allowed=PER_FORK)]
    if not wanted:
        return []
    wait = _wait(wait)
    placement = _platform(env)
    name = source if source is not None else (await env._started()).id
    api = await placement.api()
    outcomes = await api.fork_instance(
        name, wanted, wait=wait, lease=placement.lease, keep_alive=env.keep_alive or None
    )
    return [await _environment(env, placement, outcome) for outcome in outcomes]


async def fork_checkpoint(
    env: Environment,
    source: str,
    n: int | None,
    items: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> list[Environment | AEnvError]:
    """Fork a checkpoint; ``env`` knows its platform and nothing else."""
    try:
        record = await _platform(env).attach(source)
        env.env_name, env.forkable = (record.env.id if record.env is not None else env.env_name), True
        return await fork(env, n, items=items, options=options, wait=0.0, source=source)
    finally:
        await env._placement.disconnect()


async def checkpoint(env: Environment, name: str | None, ttl: str, wait: float) -> Checkpoint:
    """Make a checkpoint of the instance."""
    placement = _platform(env)
    instance = await env._started()
    made = await (await placement.api()).checkpoint_instance(
        instance.id,
        checks.one_line("name", name) or "",
        ttl=checks.duration("ttl", ttl),
        wait=_wait(wait),
        lease=placement.lease,
        keep_alive=env.keep_alive or None,
    )
    return Checkpoint.of(made)


async def rewind(env: Environment, to: Checkpoint | str) -> None:
    """Replace the state of the instance by that of a checkpoint."""
    placement = _platform(env)
    instance = await env._started()
    env._instance = await (await placement.api()).rewind_instance(instance.id, checkpoint_id(to))


async def branches(env: Environment) -> list[EnvInstance]:
    """Return the records of all forks and checkpoints of the instance, and of theirs."""
    placement = _platform(env)
    return await (await placement.api()).list_branches((await env._started()).id)


async def delete_checkpoint(env: Environment, which: Checkpoint | str) -> None:
    """Delete a checkpoint; one that is gone already is fine."""
    api = await _platform(env).api()
    try:
        await api.delete_env_instance(checkpoint_id(which))
    except NotFound:
        return


def checkpoint_id(which: Checkpoint | str) -> str:
    """Return the id of a checkpoint, given it or its id."""
    return which.id if isinstance(which, Checkpoint) else checks.text("checkpoint", which)


def _wait(seconds: float) -> float:
    return 0.0 if seconds == 0 else checks.seconds("wait", seconds)


def _platform(env: Environment) -> PlatformPlacement:
    placement = env._placement
    if not isinstance(placement, PlatformPlacement):
        raise ForkRefused(
            "AENV_INSTANCE_URL (or DUMMY_INSTANCE_IP) names a server that was started by hand, which cannot be forked"
        )
    return placement


def _item(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the request for one fork."""
    for name in options:
        if name not in PER_FORK:
            raise InvalidUse(f"a fork cannot have its own {name!r}; expected {', '.join(PER_FORK)}")
    variables = checks.variables("environment_variables", options.get("environment_variables"))
    seed = options.get("seed")
    if seed is not None:
        variables = {"AENV_SEED": str(checks.integer("seed", seed, 0)), **variables}
    return {
        "environment_variables": variables or None,
        "labels": checks.labels("labels", options.get("labels")) or None,
        "ttl": checks.duration("ttl", options.get("ttl") or ""),
    }


async def _environment(env: Environment, placement: PlatformPlacement, outcome: ForkOutcome) -> Environment | AEnvError:
    """Return the environment of a fork, ready for calls, or the error."""
    if outcome.instance is None:
        return from_answer(409, {"error": outcome.error, "code": outcome.code, "fault": outcome.fault})
    child = copy.copy(env)
    for name in _NOT_CARRIED:
        child.__dict__.pop(name, None)
    child._placement = placement.again()
    child._breaker = CircuitBreaker()
    child._released, child._attach_to = False, None
    child.proxy_headers = {}
    child.environment_variables = dict(env.environment_variables)
    child.labels = outcome.instance.labels or {}
    try:
        await child._adopt(outcome.instance)
    except AEnvError as error:
        return error
    return child
