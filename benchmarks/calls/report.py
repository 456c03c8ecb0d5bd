"""One table for all peers of one run, as Markdown."""

from collections.abc import Callable, Iterator

from peer import OURS, Peer

Results = dict[str, dict]
"""By peer, part and cell: the samples of all rounds, each a number, a dict, or a string why it failed."""


def table(peers: list[Peer], results: Results, sizes: list[int]) -> str:
    def row(title: str, part: str, name: str | int, badness: Callable, show: Callable) -> list[str]:
        samples = {peer: results[peer.name][part].get(name, []) for peer in peers}
        return [title, *_cells(samples, badness, show)]

    rows = [["", *(peer.title for peer in peers)]]
    for index, what in enumerate(("the package", "its client")):
        rows.append(row(f"CPU s of importing {what}", "imports", index, float, "{:.2f}".format))
    for kind in ("tool", "function", "reward"):
        rows.append(row(f"CPU ms per {kind} call (client + server)", "cost", kind, _total_ms, _cost))
    for size in sizes:
        title = f"tool calls/s, {size:,} session{'s'[: size > 1]}"
        rows.append(row(title, "sessions", size, _seconds_per_call, _rate))
    return _markdown(rows)


def _cells(samples: dict[Peer, list], badness: Callable, show: Callable) -> Iterator[str]:
    ours = _median(samples.get(OURS, []), badness)
    for peer, all_rounds in samples.items():
        failures = [sample for sample in all_rounds if isinstance(sample, str)]
        sample = _median(all_rounds, badness)
        if sample is None:
            yield f"failed: {failures[0][:80]}" if failures else "–"
            continue
        cell = show(sample)
        if ours is not None and peer is not OURS:
            ratio = badness(sample) / badness(ours)
            cell += f", **{ratio:.0f}x**" if ratio >= 10 else f", **{ratio:.1f}x**"
        if failures:
            cell += f", {len(failures)} of {len(all_rounds)} rounds failed"
        yield cell


def _median(samples: list, badness: Callable) -> object:
    """The sample in the middle itself, so that the parts it is made of belong together."""
    good = sorted((sample for sample in samples if not isinstance(sample, str)), key=badness)
    return good[len(good) // 2] if good else None


def _total_ms(sample: dict) -> float:
    return sample["client_ms"] + sample["server_ms"]


def _seconds_per_call(sample: dict) -> float:
    return sample["seconds"] / max(sample["calls"], 1)


def _cost(sample: dict) -> str:
    return f"{_ms(_total_ms(sample))} ({_ms(sample['client_ms'])} + {_ms(sample['server_ms'])})"


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def _rate(sample: dict) -> str:
    parts = [f"{sample['calls'] / sample['seconds']:,.0f}"]
    if sample["opened"] < sample["sessions"]:
        parts.append(f"only {sample['opened']:,} open after {sample['open_seconds']:.0f} s")
    if not sample["finished"]:
        parts.append(f"cut off at {sample['seconds']:.0f} s")
    if sample["errors"]:
        parts.append(f"{sample['errors']:,} errors")
    parts += [f"`{reason[:60]}`" for reason, _ in (sample["first_refusals"] + sample["first_errors"])[:1]]
    return ", ".join(parts)


def _markdown(rows: list[list[str]]) -> str:
    rows = [[cell.replace("|", "/") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)
