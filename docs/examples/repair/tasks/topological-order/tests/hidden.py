"""Hidden cases of topological-order. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["order.py"]
CASES = [
    (call("order", {}), []),
    (call("order", {"a": ["a"]}), Raises("ValueError")),
    (call("order", {"a": ["c"], "b": ["a"], "c": ["b"]}), Raises("ValueError")),
    (call("order", {"d": ["b", "c"], "b": ["a"], "c": ["a"], "a": []}), ["a", "b", "c", "d"]),
    (call("order", {"x": [], "a": ["b"], "b": ["a"]}), Raises("ValueError")),
    (call("order", {"a": []}), ["a"]),
    (call("order", {"a": ["q"], "b": ["a"]}), Raises("KeyError")),
]

grade_module(FILES, CASES)
