"""One table of one run, as Markdown, with our budgets beside the figures."""

from collections.abc import Callable, Iterator
from math import ceil

from report import _markdown as markdown

Cold = dict[str, dict | str]
"""By peer: its samples, or a string why there are none."""


class Table:
    def __init__(self, ours: dict, cold: Cold, titles: dict[str, str]) -> None:
        self._ours, self._cold, self._titles = ours, cold, titles
        self.missed: list[str] = []

    def __str__(self) -> str:
        head = [
            "",
            "aenv, loads its code",
            "aenv, forked loaded",
            "aenv, from the pool",
            "budget",
            *self._titles.values(),
        ]
        rows = [head, *self._levels(), *self._ends(), *self._batches(), *self._memory(), *self._rest()]
        width = len(head)
        return markdown([[*row, *["–"] * (width - len(row))] for row in rows])

    def _levels(self) -> Iterator[list[str]]:
        for number, (alive, level) in enumerate(self._ours["levels"].items()):
            alive = int(alive)
            p50, p99 = (10, 40) if alive <= 32 else (15, None) if alive >= 1000 else (None, None)
            title = f"create to first answer, ms, {alive:,} alive"
            loads = self._latency(f"{title}, that loads its code", level["load"], p50, p99)
            forked = self._latency(f"{title}, forked loaded", level["fork"], p50, p99)
            pool = self._latency(f"{title}, from the pool", level["pool"], 1.5, None)
            asked = [f"p50 ≤ {p50}" if p50 else "", f"p99 ≤ {p99}" if p99 else "", "pool p50 ≤ 1.5"]
            peers = self._peers(_latency_cold) if number == 0 else []
            yield [title, loads, forked, pool, "; ".join(part for part in asked if part), *peers]

    def _latency(self, title: str, samples: dict, p50: float | None, p99: float | None) -> str:
        times, asked = samples["create_ms"], samples["asked"]
        if not times:
            return f"failed: {samples['errors'][:1]}"
        parts = []
        for share, limit in ((50, p50), (95, None), (99, p99)):
            value = percentile(times, share)
            parts.append(self._against(f"{title}, p{share}", value, limit, _ms(value)))
        good = f" ({len(times) / asked:.1%} of {asked})" if len(times) < asked else f" (all of {asked})"
        return " / ".join(parts) + good

    def _ends(self) -> Iterator[list[str]]:
        levels = list(self._ours["levels"].items())
        for number, (alive, level) in enumerate([levels[0], levels[-1]] if len(levels) > 1 else levels):
            cells = [_ms(percentile(level[kind]["release_ms"], 50)) for kind in ("load", "fork", "pool")]
            peers = self._peers(lambda found: _ms(percentile(found["release_ms"], 50))) if number == 0 else []
            yield [f"release, ms, p50, {int(alive):,} alive", *cells, "", *peers]

    def _batches(self) -> Iterator[list[str]]:
        for size, rounds in self._ours["batches"].items():
            title = f"creates/s, {int(size):,} at once"
            good = sorted(value for value in rounds if not isinstance(value, str))
            failed = [value for value in rounds if isinstance(value, str)]
            cell = f"failed: {failed[0]}" if failed else ""
            if good:
                middle = good[len(good) // 2]
                cell = self._against(title, -middle, -150, f"{middle:.0f}")
                cell += f", {len(failed)} of {len(rounds)} rounds failed" if failed else ""
            yield [title, "–", cell, "–", "≥ 150"]

    def _memory(self) -> Iterator[list[str]]:
        found = self._ours.get("memory")
        if not found:
            return
        count = f"{found['alive']:,} alive"
        for name in ("uss", "pss"):
            title, value = f"{name.upper()} of an instance, MB, {count}", found[f"{name}_mb"]
            peers = self._peers(lambda cold, name=name: f"{percentile(cold[f'{name}_mb'], 50):.1f}")
            yield [title, "–", self._against(title, value, 5, f"{value:.1f}"), "–", "≤ 5", *peers]
        if found["added"] < 100:  # what others do on the machine would be most of it
            return
        grown = found["grown_mb"]["used"]
        each, title = grown / found["added"], f"all memory of the machine per instance, MB, {count}"
        cell = self._against(title, each, 5, f"{each:.1f}") + f" ({grown / 1000:.2f} GB in all)"
        yield [title, "–", cell, "–", "≤ 5"]

    def _rest(self) -> Iterator[list[str]]:
        idle = self._ours.get("idle")
        if idle:
            title, value = f"CPU of {idle['instances']:,} idle instances, ms per s", idle["instances_ms_per_s"]
            yield [title, "–", self._against(title, value, 1, f"{value:.1f}"), "–", "0"]
        first = self._ours["first_seconds"]
        title = "first ever: with platform and zygote, s"
        yield [title, self._against(title, first, 3, f"{first:.2f}"), "–", "–", "≤ 3"]

    def _against(self, title: str, value: float, limit: float | None, text: str) -> str:
        if limit is None or value <= limit:
            return text
        self.missed.append(f"{title}: {text}, not {abs(limit)}")
        return f"**{text}**"

    def _peers(self, show: Callable[[dict], str]) -> list[str]:
        return ["–" if isinstance(found, str) else show(found) for found in map(self._cold.get, self._titles)]


def _latency_cold(found: dict) -> str:
    failed = found["asked"] - len(found["create_ms"])
    return f"{_ms(percentile(found['create_ms'], 50))}" + (f", {failed} of {found['asked']} failed" if failed else "")


def percentile(values: list[float], share: int) -> float:
    """Nearest rank: a value that was measured."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share / 100) - 1)] if ordered else float("nan")


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
