"""Durations as text: 1h30m, 250ms."""

UNITS = [("d", 86400000), ("h", 3600000), ("m", 60000), ("s", 1000), ("ms", 1)]


def parse(text):
    """Milliseconds. Units go from large to small, each at most once."""
    total = 0
    rank = -1
    number = unit = ""
    for sign in text + "0":
        if sign.isdigit() and unit:
            place = [name for name, _ in UNITS].index(unit)
            if place < rank or not number:
                raise ValueError(f"unit {unit} is out of order")
            total += int(number) * UNITS[place][1]
            rank = place
            number = unit = ""
        if sign.isdigit():
            number += sign
        else:
            unit += sign
    if number != "0" or rank < 0:
        raise ValueError(f"{text!r} is no duration")
    return total


def show(milliseconds):
    text = ""
    for name, size in UNITS:
        count, milliseconds = divmod(milliseconds, size)
        if count:
            text += f"{count}{name}"
    return text or "0s"
