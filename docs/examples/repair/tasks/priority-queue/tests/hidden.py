"""Hidden cases of priority-queue. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_module, Raises, session

FILES = ["jobs.py"]
NAMES = [f"job{n}" for n in range(20)]
ADDS = [("add", name, (n * 37) % 101) for n, name in enumerate(NAMES)]
BY_PRIORITY = [add[1] for add in sorted(ADDS, key=lambda add: -add[2])]
CASES = [
    (session("Jobs", [], *ADDS, ("drain",)), [None] * 20 + [BY_PRIORITY]),
    (session("Jobs", [], ("add", "z"), ("add", "a"), ("next",), ("next",), ("next",)), [None, None, "z", "a", None]),
    (
        session("Jobs", [], ("add", "x", 0), ("add", "y", 100), ("next",), ("add", "w", 1), ("next",), ("next",)),
        [None, None, "y", None, "w", "x"],
    ),
    (session("Jobs", [], ("add", "x", -1)), Raises("ValueError")),
]

grade_module(FILES, CASES)
