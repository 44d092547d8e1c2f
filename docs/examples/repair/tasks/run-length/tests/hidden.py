"""Hidden cases of run-length. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["runs.py"]
CASES = [
    (call("encode", ""), ""),
    (call("encode", "zz"), "2z"),
    (call("encode", "z" * 100 + "y"), "100zy"),
    (call("encode", "aabaa"), "2ab2a"),
    (call("encode", "  "), "2 "),
    (call("decode", ""), ""),
    (call("decode", "q10w"), "q" + "w" * 10),
    (call("decode", "2ab2a"), "aabaa"),
    (call("decode", "7"), Raises("ValueError")),
]

grade_module(FILES, CASES)
