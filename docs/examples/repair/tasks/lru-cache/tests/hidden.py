"""Hidden cases of lru-cache. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises, session

FILES = ["cache.py"]
CASES = [
    (session("Cache", [1], ("put", "a", 1), ("put", "b", 2), ("get", "a"), ("get", "b")), [None, "a", None, 2]),
    (session("Cache", [2], ("put", "a", 1), ("put", "a", 2), ("keys",), ("get", "a")), [None, None, ["a"], 2]),
    (
        session("Cache", [2], ("put", "a", 1), ("put", "b", 2), ("put", "a", 3), ("put", "c", 4), ("keys",)),
        [None, None, None, "b", ["a", "c"]],
    ),
    (
        session("Cache", [3], ("put", 1, 1), ("put", 2, 2), ("put", 3, 3), ("get", 1), ("put", 4, 4), ("put", 5, 5)),
        [None, None, None, 1, 2, 3],
    ),
    (session("Cache", [2], ("get", "x", 7), ("keys",)), [7, []]),
    (session("Cache", [1], ("put", "a", None), ("get", "a", 5)), [None, None]),
    (call("Cache", 0), Raises("ValueError")),
]

grade_module(FILES, CASES)
