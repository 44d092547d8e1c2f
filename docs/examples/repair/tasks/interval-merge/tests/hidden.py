"""Hidden cases of interval-merge. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["intervals.py"]
CASES = [
    (call("merge", []), []),
    (call("merge", [[1, 1], [2, 2], [3, 3]]), [[1, 3]]),
    (call("merge", [[10, 12], [1, 3], [4, 9]]), [[1, 12]]),
    (call("merge", [[-5, -3], [-2, 0], [2, 4]]), [[-5, 0], [2, 4]]),
    (call("merge", [[1, 10], [2, 3], [11, 11]]), [[1, 11]]),
    (call("merge", [[0, 0], [0, 0]]), [[0, 0]]),
    (call("merge", [[4, 2]]), Raises("ValueError")),
    (call("covered", [[1, 2], [3, 4], [9, 9]]), 5),
    (call("gaps", [[1, 2], [3, 4]], 0, 5), [[0, 0], [5, 5]]),
    (call("gaps", [[0, 9]], 2, 3), []),
]

grade_module(FILES, CASES)
