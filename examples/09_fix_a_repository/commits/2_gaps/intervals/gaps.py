from .merging import merge


def gaps(intervals, start, end):
    """The parts of [start, end] that no interval covers."""
    free = []
    for first, last in merge(intervals):
        if first > start:
            free.append([start, min(first - 1, end)])
        start = max(start, last + 1)
        if start > end:
            break
    if start <= end:
        free.append([start, end])
    return free
