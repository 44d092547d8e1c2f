"""Hidden cases of text-report. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module

FILES = ["report.py", "cells.py"]
CASES = [
    (call("render", [["name", "n"], ["x", 10]]), ["name  n", "x     10"]),
    (call("render", [[1, "a"], [100, "b"]], None, 1), ["  1 a", "100 b"]),
    (call("render", [["long text", 1], ["s", 22]], [5, 5]), ["long.   1", "s      22"]),
    (call("render", [["a"]]), ["a"]),
    (call("render", [["", ""]]), [""]),
]

grade_module(FILES, CASES)
