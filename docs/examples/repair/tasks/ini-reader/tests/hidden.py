"""Hidden cases of ini-reader. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["ini.py"]
CASES = [
    (call("read", "[ a b ]\nx=1"), {"": {}, "a b": {"x": "1"}}),
    (call("read", "[a]\nx=1\n[b]\ny=2\n[a]\nz=3"), {"": {}, "a": {"x": "1", "z": "3"}, "b": {"y": "2"}}),
    (call("read", "[]\nx=1"), {"": {"x": "1"}}),
    (call("read", "[[a]]\n"), {"": {}, "[a]": {}}),
    (call("read", "  [a]  \n  k  =  \n"), {"": {}, "a": {"k": ""}}),
    (call("read", "[a"), Raises("ValueError")),
    (call("read", "[a]\nword"), Raises("ValueError")),
    (call("read", ""), {"": {}}),
]

grade_module(FILES, CASES)
