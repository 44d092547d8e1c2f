"""Hidden cases of edit-distance. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module

FILES = ["distance.py"]
CASES = [
    (call("distance", "", ""), 0),
    (call("distance", "a", ""), 1),
    (call("distance", "intention", "execution"), 5),
    (call("distance", "abc", "cab"), 2),
    (call("distance", "aaaa", "bb"), 4),
    (call("closest", "a", ["b", "c"]), "b"),
    (call("closest", "abcd", ["abxx", "abcx"]), "abcx"),
    (call("closest", "abcd", ["wxyz"], 3), None),
    (call("closest", "abcd", ["wxyz"], 4), "wxyz"),
    (call("closest", "", []), None),
]

grade_module(FILES, CASES)
