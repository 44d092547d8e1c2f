"""Hidden cases of token-bucket. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_module, Raises, session

FILES = ["bucket.py"]
CASES = [
    (session("Bucket", [1, 1], ("take", 1, 0), ("take", 1, 0), ("take", 1, 1)), [True, False, True]),
    (session("Bucket", [10, 4], ("take", 10, 0), ("wait", 8, 0), ("take", 8, 2), ("take", 1, 2)), [True, 2.0, True, False]),
    (session("Bucket", [4, 2], ("take", 4, 0), ("take", 3, 1), ("take", 2, 1), ("wait", 4, 2)), [True, False, True, 1.0]),
    (session("Bucket", [5, 10], ("take", 5, 100), ("take", 5, 99), ("take", 5, 101)), [True, False, True]),
    (session("Bucket", [1, 0.5], ("take", 1, 0), ("take", 1, 1), ("take", 1, 2)), [True, False, True]),
    (session("Bucket", [2, 1], ("wait", 1, 0)), [0.0]),
    (session("Bucket", [2, 1], ("wait", 3, 0)), Raises("ValueError")),
]

grade_module(FILES, CASES)
