"""Lengths in metres, temperatures in degrees Celsius."""

METRES = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0, "in": 0.0254, "ft": 0.3048, "mi": 1609.344}


def convert_length(value, source, target):
    for unit in (source, target):
        if unit not in METRES:
            raise ValueError(f"no length unit {unit}; known are {', '.join(METRES)}")
    return round(value * METRES[source] / METRES[target], 6)


def to_celsius(value, unit):
    if unit == "F":
        return round(value * 5 / 9 - 32, 6)
    if unit == "K":
        return round(value - 273.15, 6)
    if unit != "C":
        raise ValueError(f"no temperature unit {unit}")
    return round(value, 6)


def convert_temperature(value, source, target):
    celsius = to_celsius(value, source)
    if target == "F":
        return round((celsius + 32) * 9 / 5, 6)
    if target == "K":
        return round(celsius + 273.15, 6)
    return to_celsius(celsius, target)
