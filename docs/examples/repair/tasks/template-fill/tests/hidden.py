"""Hidden cases of template-fill. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["template.py"]
CASES = [
    (call("fill", "{{{a}}}", {"a": 5}), "{5}"),
    (call("fill", "{a}.", {"a": "x"}), "x."),
    (call("fill", "{a|}-{b|z}", {"b": "y"}), "-y"),
    (call("fill", "{{{{", {}), "{{"),
    (call("fill", "", {}), ""),
    (call("fill", "{}", {"": "e"}), "e"),
    (call("fill", "{a} {", {"a": 1}), Raises("ValueError")),
    (call("fill", "{b}", {"a": 1}), Raises("KeyError")),
]

grade_module(FILES, CASES)
