def merge(intervals):
    """Join intervals that overlap or touch: [1, 3] and [4, 5] are [1, 5]. The result is sorted."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
