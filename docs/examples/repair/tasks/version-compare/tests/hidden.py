"""Hidden cases of version-compare. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["versions.py"]
CASES = [
    (call("compare", "10.0", "9.9.9"), 1),
    (call("compare", "1.02", "1.2"), 0),
    (call("compare", "1.0.0", "1"), 0),
    (call("compare", "3.100", "3.20"), 1),
    (call("compare", "1.10-beta", "1.10"), -1),
    (call("compare", "1.10-beta", "1.9"), 1),
    (call("newest", ["0.9", "0.10", "0.10-rc1"]), "0.10"),
    (call("compare", "1.x", "1.0"), Raises("ValueError")),
]

grade_module(FILES, CASES)
