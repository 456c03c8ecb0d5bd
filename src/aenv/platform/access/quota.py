"""Quotas by token: concurrent instances, CPUs and memory, and the rate of creates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aenv.errors import QuotaExceeded, RateLimited
from aenv.isolation.limits.cgroups import Limits
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.ledger import Charge

BURST_SECONDS = 2.0
"""Burst size: an idle token may create this many seconds' worth of instances at once."""


@dataclass(slots=True)
class QuotaUsage:
    """Current usage of one token."""

    instances: int = 0
    cpus: float = 0.0
    memory: int = 0


@dataclass(slots=True)
class _Bucket:
    """Token bucket of the create rate."""

    left: float
    at: float


class Quota:
    """Counts usage by token. Callers without a token are not counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: dict[str, QuotaUsage] = {}
        self._remote: dict[str, QuotaUsage] = {}
        self._buckets: dict[str, _Bucket] = {}
        self.on_change: Callable[[str], None] = lambda token_id: None
        """Called with a token's id after its instances have changed."""

    def used(self, token_id: str) -> QuotaUsage:
        """Return the usage of one token on all servers."""
        local, remote = self._used.get(token_id, QuotaUsage()), self._remote.get(token_id, QuotaUsage())
        return QuotaUsage(local.instances + remote.instances, local.cpus + remote.cpus, local.memory + remote.memory)

    def set_remote(self, token_id: str, charges: Sequence[Charge]) -> None:
        """Set the usage of one token on other servers."""
        cpus, memory = (sum(charge.cpus for charge in charges), sum(charge.memory for charge in charges))
        self._remote.pop(token_id, None)
        if charges:
            self._remote[token_id] = QuotaUsage(len(charges), cpus, memory)

    def admit(self, caller: Caller, count: int) -> None:
        """Charge ``count`` creates to the caller's rate limit.

        A request for more than a burst is admitted once the bucket is full, and leaves it in debt: the next one waits
        until the debt is paid off.

        Raises:
            RateLimited: the rate is exceeded; ``retry_after`` says when to try again.
        """
        rate = caller.allowance.creates_per_second
        if not caller.token_id or not rate:
            return
        now, size = self._clock(), max(1.0, rate * BURST_SECONDS)
        bucket = self._buckets.setdefault(caller.token_id, _Bucket(size, now))
        bucket.left = min(size, bucket.left + (now - bucket.at) * rate)
        bucket.at = now
        needed = min(float(count), size)
        if bucket.left < needed:
            wait = max(1, math.ceil((needed - bucket.left) / rate))
            raise RateLimited(
                f"your token may create {rate:g} instances a second; try again in {wait} s",
                details={"retry_after": wait, "hint": "The SDK waits and tries again by itself."},
            )
        bucket.left -= count

    def take(self, caller: Caller, limits: Limits) -> None:
        """Count one new instance.

        Raises:
            QuotaExceeded: it would exceed the token's allowance.
        """
        self.check(caller, limits, 1)
        if not caller.token_id:
            return
        self.count(caller.token_id, limits)

    def count(self, token_id: str, limits: Limits) -> None:
        """Count one existing instance, even above the allowance."""
        if not token_id:
            return
        used = self._used.setdefault(token_id, QuotaUsage())
        used.instances += 1
        used.cpus += limits.cpus
        used.memory += limits.memory
        self.on_change(token_id)

    def check(self, caller: Caller, limits: Limits, count: int, beside: Sequence[tuple[Limits, int]] = ()) -> None:
        """Check that ``count`` more instances fit into the allowance, without counting them.

        ``beside``: limits and numbers of others that take of it, too.

        Raises:
            QuotaExceeded: they do not.
        """
        if not caller.token_id:
            return
        used, allowed = self._used_beside(caller.token_id, beside), caller.allowance
        limits_to_check = (
            ("instances", used.instances, count, allowed.instances),
            ("CPUs", used.cpus, count * limits.cpus, allowed.cpus),
            ("bytes of memory", used.memory, count * limits.memory, allowed.memory),
        )
        for unit, used_now, more, limit in limits_to_check:
            if limit and used_now + more > limit:
                raise QuotaExceeded(
                    f"your token uses {used_now:g} of {limit:g} {unit}, and this would be {more:g} more",
                    details={
                        "limit": limit,
                        "used": used_now,
                        "hint": "Delete an instance, or ask the administrator for more.",
                    },
                )

    def room(self, caller: Caller, limits: Limits, most: int, beside: Sequence[tuple[Limits, int]] = ()) -> int:
        """Return how many more instances fit into the allowance, at most ``most``. ``beside``: as in `check`."""
        if not caller.token_id:
            return most
        used, allowed = self._used_beside(caller.token_id, beside), caller.allowance
        found = float(most)
        for used_now, each, limit in (
            (used.instances, 1, allowed.instances),
            (used.cpus, limits.cpus, allowed.cpus),
            (used.memory, limits.memory, allowed.memory),
        ):
            if limit and each:
                found = min(found, (limit - used_now) / each)
        return max(0, math.floor(found + 1e-9))  # CPUs are floats

    def _used_beside(self, token_id: str, beside: Sequence[tuple[Limits, int]]) -> QuotaUsage:
        used = self.used(token_id)
        for each, number in beside:
            used = QuotaUsage(
                used.instances + number, used.cpus + number * each.cpus, used.memory + number * each.memory
            )
        return used

    def give_back(self, token_id: str, limits: Limits) -> None:
        """Stop counting one instance."""
        used = self._used.get(token_id)
        if used is None:
            return
        used.instances -= 1
        used.cpus -= limits.cpus
        used.memory -= limits.memory
        if used.instances == 0:
            del self._used[token_id]
        self.on_change(token_id)
