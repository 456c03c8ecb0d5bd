"""Statistics of episodes that count what may be counted, and say what they left out.

Only final episodes with a reward count. Episodes that ended for a reason that is not the agent's (env, infra, user,
cancelled), that did not end, or that were attempted again have no reward and are never counted as 0.

The interval of the mean treats the samples of one task as related: many samples of few tasks do not make it narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

from aenv.trajectory.events import UNGRADED, EpisodeSummary

PASS = 1.0
"""Score from which an episode passes."""
DO_NOTHING = "do_nothing_reward"
"""Name in a reward for what an agent that does nothing gets on the same task, where the environment tells it."""
KS = (1, 2, 4, 8, 16, 32, 64)
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval. The limits are None where one task alone gives no estimate of them."""

    mean: float
    low: float | None
    high: float | None
    confidence: float


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """The counted samples of one task: a group, as trainers call it."""

    task: str
    scores: Mapping[int, float]
    """Score by sample."""
    passed: int
    mean: float
    deviation: float
    """Standard deviation of the sample; 0 for one score."""

    @property
    def advantages(self) -> dict[int, float]:
        """Return by sample how far its score is from the group's mean, in standard deviations.

        A group whose scores are all equal has advantages of 0: it teaches nothing.
        """
        scale = self.deviation if self.deviation > 0 else math.inf
        return {sample: (score - self.mean) / scale for sample, score in self.scores.items()}


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Statistics of an agent over its episodes."""

    episodes: int
    counted: int
    outcomes: Mapping[str, int]
    """Number of final episodes by outcome."""
    left_out: Mapping[str, int]
    """Number of episodes that are not counted, by reason."""
    reward: Interval | None
    pass_at: Mapping[int, float]
    """Estimate, by k, of the chance that at least one of k samples of a task passes; over tasks with k samples."""
    pass_all: Mapping[int, float]
    """Estimate, by k, of the chance that all of k samples of a task pass (pass^k); over tasks with k samples."""
    tasks: Sequence[TaskStatistics]
    do_nothing: float | None = None
    """Mean reward of an agent that does nothing, over the counted tasks, where it is known for all of them."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cost: float | None = None

    @property
    def without_signal(self) -> int:
        """Return the number of groups of two or more samples whose scores are all equal."""
        return sum(len(task.scores) > 1 and task.deviation == 0 for task in self.tasks)

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as a JSON object."""
        document = asdict(self)
        document["tasks"] = [{**asdict(task), "advantages": task.advantages} for task in self.tasks]
        document["without_signal"] = self.without_signal
        return document


def summarize(
    episodes: Iterable[EpisodeSummary],
    *,
    threshold: float = PASS,
    ks: Iterable[int] = KS,
    confidence: float = CONFIDENCE,
    do_nothing: Mapping[str, float] | None = None,
) -> RunStatistics:
    """Return the statistics of episodes.

    Args:
        episodes: Episodes of one agent. Those of different runs are different samples.
        threshold: Score from which an episode passes.
        ks: Values of k; those with no task of k samples are left out.
        confidence: Of the interval, between 0 and 1.
        do_nothing: Reward of an agent that does nothing, by task. Default for a task: what its rewards tell as
            ``do_nothing_reward``.
    """
    totals = _Totals()
    for episode in episodes:
        totals.add(episode)
    tasks = [_task(name, list(scores.values()), scores, threshold) for name, scores in totals.scores.items()]
    counted = sum(len(task.scores) for task in tasks)
    known = {**totals.do_nothing, **(do_nothing or {})}
    idle = [known[task.task] * len(task.scores) for task in tasks if task.task in known]
    return RunStatistics(
        episodes=totals.episodes,
        counted=counted,
        outcomes=dict(totals.outcomes),
        left_out=dict(totals.left_out),
        reward=interval([list(task.scores.values()) for task in tasks], confidence),
        pass_at={k: rate for k in ks if (rate := _over(tasks, k, pass_at_k)) is not None},
        pass_all={k: rate for k in ks if (rate := _over(tasks, k, pass_all_k)) is not None},
        tasks=tasks,
        do_nothing=sum(idle) / counted if idle and len(idle) == len(tasks) else None,
        tokens=dict(totals.tokens),
        seconds=totals.seconds,
        cost=totals.cost,
    )


@dataclass(slots=True)
class _Totals:
    """Sums over episodes."""

    episodes: int = 0
    seconds: float = 0.0
    cost: float | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    scores: dict[str, dict[tuple[str, int], float]] = field(default_factory=dict)
    """Scores that count, by task, then by run and sample."""
    do_nothing: dict[str, float] = field(default_factory=dict)
    """Reward of doing nothing, by task, where rewards tell it."""

    def add(self, episode: EpisodeSummary) -> None:
        self.episodes += 1
        self.seconds += episode.seconds or 0.0
        if episode.cost is not None:
            self.cost = (self.cost or 0.0) + episode.cost
        self.tokens.update(episode.tokens)
        if episode.final and episode.outcome is not None:
            self.outcomes[episode.outcome] += 1
        reason = _left_out(episode)
        if reason is not None:
            self.left_out[reason] += 1
        elif episode.score is not None:
            self.scores.setdefault(episode.task, {})[episode.run, episode.sample] = episode.score
            told = episode.reward.get(DO_NOTHING) if isinstance(episode.reward, Mapping) else None
            if isinstance(told, int | float):
                self.do_nothing[episode.task] = float(told)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the chance that at least one of k of the samples, drawn without replacement, passed."""
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def pass_all_k(samples: int, passed: int, k: int) -> float:
    """Return the chance that all of k of the samples, drawn without replacement, passed."""
    return math.comb(passed, k) / math.comb(samples, k)


def advantages(scores: Sequence[float]) -> list[float]:
    """Return how far each score of a group is from the group's mean, in standard deviations; 0 if all are equal."""
    return list(_task("", scores, {("", n): score for n, score in enumerate(scores)}, PASS).advantages.values())


def interval(groups: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the mean of scores that are grouped by task, with its confidence interval; None without scores.

    Scores of 0 and 1 get a Wilson interval, others one from Student's t; both take the groups into account.
    """
    groups = [group for group in groups if group]
    scores = [score for group in groups for score in group]
    if not scores:
        return None
    count, mean = len(scores), math.fsum(scores) / len(scores)
    clusters = len(groups)
    if clusters > 1:
        spread = math.fsum((math.fsum(group) - len(group) * mean) ** 2 for group in groups)
        variance = spread * clusters / (clusters - 1) / count**2
    elif count == 1:
        return Interval(mean, None, None, confidence)
    else:  # samples of one task: the interval is about this task alone
        variance = math.fsum((score - mean) ** 2 for score in scores) / (count - 1) / count
        clusters = count
    if set(scores) <= {0.0, 1.0}:
        single = mean * (1 - mean)
        size = single / variance * clusters / (clusters - 1) if variance > 0 and single > 0 else float(clusters)
        return Interval(mean, *_wilson(mean, min(size, float(count)), confidence), confidence)
    half = student_quantile((1 + confidence) / 2, clusters - 1) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, confidence)


def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, by bisection of its distribution function."""
    low, high = 0.0, 2.0
    while _student_below(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def _student_below(value: float, freedom: int) -> float:
    """Return the chance of a t of at most ``value`` >= 0, by the finite series for whole degrees of freedom."""
    if freedom > 1000:
        return NormalDist().cdf(value)
    angle = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        term, total = cosine, cosine if freedom > 1 else 0.0
        for n in range(3, freedom - 1, 2):
            term *= cosine * cosine * (n - 1) / n
            total += term
        return 0.5 + (angle + sine * total) / math.pi
    term = total = 1.0
    for n in range(2, freedom - 1, 2):
        term *= cosine * cosine * (n - 1) / n
        total += term
    return 0.5 + sine * total / 2


def _wilson(mean: float, size: float, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (mean + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(mean * (1 - mean) / size + z * z / (4 * size * size))
    return max(0.0, middle - half), min(1.0, middle + half)


def _left_out(episode: EpisodeSummary) -> str | None:
    if episode.state != "ended":
        return episode.state
    if episode.outcome in UNGRADED:
        return episode.outcome if episode.final else "attempted again"
    if not episode.final:
        return "attempted again"
    return "without a reward" if episode.score is None else None


def _task(
    name: str, scores: Sequence[float], by_sample: Mapping[tuple[str, int], float], threshold: float
) -> TaskStatistics:
    mean = math.fsum(scores) / len(scores)
    several = len(set(scores)) > 1
    spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1)) if several else 0.0
    samples = [sample for _, sample in by_sample]
    numbers = samples if len(set(samples)) == len(samples) else range(len(samples))
    return TaskStatistics(
        task=name,
        scores=dict(zip(numbers, scores, strict=True)),
        passed=sum(score >= threshold for score in scores),
        mean=mean,
        deviation=spread,
    )


def _over(tasks: Sequence[TaskStatistics], k: int, rate: Any) -> float | None:
    rates = [rate(len(task.scores), task.passed, k) for task in tasks if len(task.scores) >= k]
    return math.fsum(rates) / len(rates) if rates else None
