"""Progress of a rollout."""

from __future__ import annotations

import time
from collections import Counter

from aenv.rollout.model import Reply
from aenv.rollout.result import EpisodeResult

MOST_SHOWN = 120
"""Characters of a failure that are shown."""


class Progress:
    """Counts of a rollout so far."""

    def __init__(self, total: int) -> None:
        self.total = total
        """Episodes of the rollout: tasks times samples."""
        self.running = 0
        self.outcomes: Counter[str] = Counter()
        """Finished episodes by outcome."""
        self.retries = 0
        """Attempts that failed for infra reasons and were repeated."""
        self.scores = 0.0
        self.scored = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost = 0.0
        self.failure = ""
        """Last failure that is being retried; empty once anything worked."""
        self._resumed = 0
        self._began = time.monotonic()

    @property
    def done(self) -> int:
        """Finished episodes."""
        return self.outcomes.total()

    @property
    def mean_score(self) -> float | None:
        """Mean score of the episodes that have one."""
        return self.scores / self.scored if self.scored else None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def tokens_per_second(self) -> float:
        """Tokens that the model wrote, per second."""
        return self.output_tokens / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the remaining seconds; None before the first episode has finished."""
        done_now = self.done - self._resumed
        return (self.total - self.done) * self.seconds / done_now if done_now else None

    def finished(self, result: EpisodeResult) -> None:
        """Count a final result."""
        self.failure = ""
        self.outcomes[result.outcome] += 1
        self._resumed += result.resumed
        if result.score is not None:
            self.scores += result.score
            self.scored += 1

    def replied(self, reply: Reply) -> None:
        """Count a model's answer."""
        self.failure = ""
        self.input_tokens += reply.input_tokens
        self.output_tokens += reply.output_tokens
        self.cost += reply.cost

    def failing(self, reason: str) -> None:
        """Remember why something is tried again."""
        self.failure = reason

    def line(self) -> str:
        """Return the progress on one line."""
        failed = " ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()) if name != "ok")
        parts = [f"{self.done}/{self.total} done, {self.running} running"]
        parts += [failed] if failed else []
        parts += [f"{self.retries} retried"] if self.retries else []
        parts += [f"reward {self.mean_score:.3f}"] if self.mean_score is not None else []
        parts += [f"{self.tokens_per_second:.0f} tokens/s"] if self.output_tokens else []
        parts += [f"cost {self.cost:.4g}"] if self.cost else []
        left = self.seconds_left
        parts += [f"{_duration(left)} left"] if left is not None and self.done < self.total else []
        parts += [f"retrying: {_one_line(self.failure)}"] if self.failure else []
        return " | ".join(parts)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:MOST_SHOWN]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
