"""Hidden cases of roman-numerals. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["roman.py"]
CASES = [
    (call("to_roman", 40), "XL"),
    (call("to_roman", 3999), "MMMCMXCIX"),
    (call("to_roman", 448), "CDXLVIII"),
    (call("from_roman", "MCDXLIV"), 1444),
    (call("from_roman", "XXXX"), Raises("ValueError")),
    (call("from_roman", "IXL"), Raises("ValueError")),
    (call("to_roman", -1), Raises("ValueError")),
    (call("from_roman", "DCCCXC"), 890),
]

grade_module(FILES, CASES)
