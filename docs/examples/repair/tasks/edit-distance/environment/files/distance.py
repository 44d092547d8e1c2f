"""How far two texts are apart."""


def distance(left, right):
    """Fewest insertions, removals and replacements that turn one text into the other."""
    row = list(range(len(right)))
    for i, a in enumerate(left, start=1):
        above = row
        row = [i]
        for j, b in enumerate(right, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
    return row[-1]


def closest(word, known, limit=2):
    """The nearest known word within `limit`, the first of equals; None if there is none."""
    best = None
    for other in known:
        apart = distance(word, other)
        if apart <= limit:
            best, limit = other, apart - 1
    return best
