"""Hidden cases of binary-search. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["search.py"]
CASES = [(call("first_at_least", list(range(0, 40, 2)), n), (n + 1) // 2) for n in range(0, 39, 3)] + [
    (call("first_at_least", [1, 2], 9), 2),
    (call("first_at_least", [7, 7, 7], 7), 0),
    (call("count", [1, 1, 1, 1], 1), 4),
    (call("count", [1, 3], 2), 0),
    (call("nearest", [10], 3), 10),
    (call("nearest", [1, 2, 8], 100), 8),
    (call("nearest", [], 1), Raises("ValueError")),
]

grade_module(FILES, CASES)
