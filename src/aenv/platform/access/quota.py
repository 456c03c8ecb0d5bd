"""How much each token may use, and how often it may ask."""

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
"""A token that has been quiet may make so many seconds' worth of instances at once."""


@dataclass(slots=True)
class QuotaUsage:
    """What one token uses now."""

    instances: int = 0
    cpus: float = 0.0
    memory: int = 0


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Quota:
    """Counts what is used, by token. Whoever has no token is not counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used: dict[str, QuotaUsage] = {}
        self._elsewhere: dict[str, QuotaUsage] = {}
        self._buckets: dict[str, _Bucket] = {}

    def used(self, token_id: str) -> QuotaUsage:
        """By one token, on all servers."""
        here, there = self._used.get(token_id, QuotaUsage()), self._elsewhere.get(token_id, QuotaUsage())
        return QuotaUsage(here.instances + there.instances, here.cpus + there.cpus, here.memory + there.memory)

    def learn(self, token_id: str, charges: Sequence[Charge]) -> None:
        """Hear what it uses on other servers."""
        cpus, memory = (sum(charge.cpus for charge in charges), sum(charge.memory for charge in charges))
        self._elsewhere.pop(token_id, None)
        if charges:
            self._elsewhere[token_id] = QuotaUsage(len(charges), cpus, memory)

    def admit(self, caller: Caller, count: int) -> None:
        """Charge the creation of ``count`` instances.

        A request for more than a burst is let in once the bucket is full, and leaves it in debt: the next one waits
        until all that was made has been paid for.

        Raises:
            RateLimited: too often; it says when to come again.
        """
        rate = caller.allowance.creates_per_second
        if not caller.token_id or not rate:
            return
        now, most = self._clock(), max(1.0, rate * BURST_SECONDS)
        bucket = self._buckets.setdefault(caller.token_id, _Bucket(most, now))
        bucket.left = min(most, bucket.left + (now - bucket.at) * rate)
        bucket.at = now
        needed = min(float(count), most)
        if bucket.left < needed:
            wait = max(1, math.ceil((needed - bucket.left) / rate))
            raise RateLimited(
                f"your token may make {rate:g} instances a second; try again in {wait} s",
                details={"retry_after": wait, "hint": "The SDK waits and tries again by itself."},
            )
        bucket.left -= count

    def take(self, caller: Caller, limits: Limits) -> None:
        """Count one instance.

        Raises:
            QuotaExceeded: it would be one too many.
        """
        self.check(caller, limits, 1)
        if not caller.token_id:
            return
        self.count(caller.token_id, limits)

    def count(self, token_id: str, limits: Limits) -> None:
        """Count one that is there, whether it may be or not."""
        if not token_id:
            return
        used = self._used.setdefault(token_id, QuotaUsage())
        used.instances += 1
        used.cpus += limits.cpus
        used.memory += limits.memory

    def check(self, caller: Caller, limits: Limits, count: int) -> None:
        """Look whether there is enough for so many, and count none.

        Raises:
            QuotaExceeded: there is not.
        """
        if not caller.token_id:
            return
        used, allowed = self.used(caller.token_id), caller.allowance
        wishes = (
            ("instances", used.instances, count, allowed.instances),
            ("CPUs", used.cpus, count * limits.cpus, allowed.cpus),
            ("bytes of memory", used.memory, count * limits.memory, allowed.memory),
        )
        for what, now, more, most in wishes:
            if most and now + more > most:
                raise QuotaExceeded(
                    f"your token uses {now:g} of {most:g} {what}, and this would be {more:g} more",
                    details={
                        "limit": most, "used": now, "hint": "Delete an instance, or ask the administrator for more.",
                    },
                )  # fmt: skip

    def give_back(self, token_id: str, limits: Limits) -> None:
        """One instance less."""
        used = self._used.get(token_id)
        if used is None:
            return
        used.instances -= 1
        used.cpus -= limits.cpus
        used.memory -= limits.memory
        if used.instances == 0:
            del self._used[token_id]
