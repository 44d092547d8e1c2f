"""Places in a sorted list."""


def first_at_least(values, wanted):
    """Index of the first value that is not below `wanted`; the length if there is none."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 2
        else:
            high = middle
    return low


def count(values, wanted):
    """How often a whole number occurs."""
    return first_at_least(values, wanted + 1) - first_at_least(values, wanted)


def nearest(values, wanted):
    """The closest value; the smaller one if two are equally close."""
    if not values:
        raise ValueError("nothing to search")
    place = first_at_least(values, wanted)
    if place == 0:
        return values[0]
    if place == len(values) or wanted - values[place - 1] <= values[place] - wanted:
        return values[place - 1]
    return values[place]
