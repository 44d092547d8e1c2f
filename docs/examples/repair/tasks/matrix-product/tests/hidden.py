"""Hidden cases of matrix-product. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["matrix.py"]
CASES = [
    (call("product", [[1, 2, 3], [4, 5, 6]], [[1, 0], [0, 1], [2, 2]]), [[7, 8], [16, 17]]),
    (call("product", [[2], [3]], [[4, 5, 6]]), [[8, 10, 12], [12, 15, 18]]),
    (call("power", [[0, 1], [2, 3]], 3), [[6, 11], [22, 39]]),
    (call("power", [[5]], 0), [[1]]),
    (call("transpose", [[1], [2]]), [[1, 2]]),
    (call("product", [[1, 2], [3]], [[1], [1]]), Raises("ValueError")),
    (call("product", [[1]], [[1], [2]]), Raises("ValueError")),
]

grade_module(FILES, CASES)
