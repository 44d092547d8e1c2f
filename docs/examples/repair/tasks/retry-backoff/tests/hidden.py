"""Hidden cases of retry-backoff. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises, session

FILES = ["backoff.py"]
CASES = [
    (call("delay", 1, 0.5, 60.0), 0.5),
    (call("delay", 7), 60.0),
    (call("delay", 6), 32.0),
    (call("delay", 1, 5.0, 2.0), 2.0),
    (call("schedule", 5, 1.0, 4.0), [1.0, 2.0, 4.0, 4.0]),
    (call("schedule", 1), []),
    (
        session("Retry", [3], ("failed",), ("failed",), ("succeeded",), ("failed",), ("failed",), ("failed",)),
        [1.0, 2.0, None, 1.0, 2.0, None],
    ),
    (call("delay", -3), Raises("ValueError")),
]

grade_module(FILES, CASES)
