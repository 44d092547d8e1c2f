"""Hidden cases of bracket-matcher. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["brackets.py"]
CASES = [
    (call("balanced", "["), False),
    (call("balanced", "{}{"), False),
    (call("balanced", ""), True),
    (call("balanced", "x"), True),
    (call("balanced", "([)]"), False),
    (call("balanced", "\"it's (\" ()"), True),
    (call("balanced", "a 'b"), False),
    (call("depth", "((("), Raises("ValueError")),
    (call("depth", "no brackets"), 0),
    (call("depth", "{[()]}()"), 3),
]

grade_module(FILES, CASES)
