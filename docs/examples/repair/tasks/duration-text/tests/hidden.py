"""Hidden cases of duration-text. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["durations.py"]
CASES = [
    (call("parse", "1h1h"), Raises("ValueError")),
    (call("parse", "2s3s"), Raises("ValueError")),
    (call("parse", "1d2h3m4s5ms"), 93784005),
    (call("parse", "007s"), 7000),
    (call("parse", "1h30"), Raises("ValueError")),
    (call("parse", ""), Raises("ValueError")),
    (call("parse", "1ms1s"), Raises("ValueError")),
    (call("parse", "3x"), Raises("ValueError")),
    (call("show", 86400001), "1d1ms"),
    (call("show", 61000), "1m1s"),
]

grade_module(FILES, CASES)
