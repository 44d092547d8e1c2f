"""Closed intervals of whole numbers as [first, last] pairs."""


def merge(intervals):
    """Joins intervals that overlap or touch; the result is sorted."""
    merged = []
    for first, last in sorted(intervals):
        if first > last:
            raise ValueError(f"interval [{first}, {last}] ends before it begins")
        if merged and first < merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


def covered(intervals):
    """How many whole numbers lie in at least one interval."""
    return sum(last - first + 1 for first, last in merge(intervals))


def gaps(intervals, first, last):
    """The parts of [first, last] that no interval covers."""
    found = []
    for begin, end in merge(intervals):
        if begin > first:
            found.append([first, min(begin - 1, last)])
        first = max(first, end + 1)
        if first > last:
            return found
    found.append([first, last])
    return found
