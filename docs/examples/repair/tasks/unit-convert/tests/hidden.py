"""Hidden cases of unit-convert. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["units.py"]
CASES = [
    (call("convert_temperature", -40, "F", "C"), -40.0),
    (call("convert_temperature", -40, "C", "F"), -40.0),
    (call("convert_temperature", 98.6, "F", "C"), 37.0),
    (call("convert_temperature", 0, "K", "F"), -459.67),
    (call("convert_temperature", 50, "C", "F"), 122.0),
    (call("convert_temperature", 50, "F", "K"), 283.15),
    (call("convert_temperature", 1, "X", "C"), Raises("ValueError")),
    (call("convert_length", 3, "ft", "in"), 36.0),
    (call("convert_length", 1, "ly", "m"), Raises("ValueError")),
]

grade_module(FILES, CASES)
