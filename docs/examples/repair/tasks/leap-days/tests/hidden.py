"""Hidden cases of leap-days. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["calendar_days.py"]
LEAP_YEARS = {1600: True, 1700: False, 2400: True, 2100: False, 2004: True, 2001: False}
CASES = [(call("is_leap", year), leap) for year, leap in LEAP_YEARS.items()] + [
    (call("days_in_month", 1900, 2), 28),
    (call("days_in_month", 2000, 2), 29),
    (call("days_in_month", 2023, 13), Raises("ValueError")),
    (call("day_of_year", 2000, 12, 31), 366),
    (call("days_between", [1999, 12, 31], [2001, 1, 1]), 367),
    (call("days_between", [1900, 1, 1], [2000, 1, 1]), 36524),
    (call("days_between", [2000, 2, 29], [2000, 2, 29]), 0),
]

grade_module(FILES, CASES)
