"""Hidden cases of ring-buffer. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises, session

FILES = ["ring.py"]
CASES = [
    (session("Ring", [1], ("push", 1), ("push", 2), ("values",), ("pop",), ("values",)), [None, None, [2], 2, []]),
    (
        session("Ring", [2], ("push", 1), ("push", 2), ("push", 3), ("pop",), ("pop",), ("push", 4), ("pop",)),
        [None, None, None, 2, 3, None, 4],
    ),
    (
        session("Ring", [3], *[("push", n) for n in range(8)], ("values",), ("pop",), ("pop",), ("pop",)),
        [None] * 8 + [[5, 6, 7], 5, 6, 7],
    ),
    (
        session("Ring", [2], ("push", 1), ("pop",), ("push", 2), ("pop",), ("push", 3), ("pop",), ("values",)),
        [None, 1, None, 2, None, 3, []],
    ),
    (session("Ring", [2], ("pop",)), Raises("IndexError")),
    (call("Ring", 0), Raises("ValueError")),
]

grade_module(FILES, CASES)
