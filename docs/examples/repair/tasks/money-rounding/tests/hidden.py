"""Hidden cases of money-rounding. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["money.py"]
CASES = [
    (call("parse", "1.005"), 101),
    (call("parse", "8.575"), 858),
    (call("parse", "-1.115"), -112),
    (call("parse", "0.994"), 99),
    (call("parse", "90071992547409.93"), 9007199254740993),
    (call("parse", ".5"), 50),
    (call("parse", "+2."), 200),
    (call("parse", "1.2.3"), Raises("ValueError")),
    (call("split", 7, 2), [4, 3]),
    (call("show", 123456), "1234.56"),
]

grade_module(FILES, CASES)
