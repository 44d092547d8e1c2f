"""Hidden cases of word-wrap. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["wrap.py"]
CASES = [
    (call("wrap", "aa bb cc dd", 5), ["aa bb", "cc dd"]),
    (call("wrap", "a b c", 1), ["a", "b", "c"]),
    (call("wrap", "a b c", 3), ["a b", "c"]),
    (call("wrap", "abcdef gh", 6), ["abcdef", "gh"]),
    (call("wrap", "abcdefg hi", 4), ["abcd", "efg", "hi"]),
    (call("wrap", "abcde f", 4), ["abcd", "e f"]),
    (call("wrap", "one two three four", 9), ["one two", "three", "four"]),
    (call("wrap", "one two three four", 10), ["one two", "three four"]),
    (call("wrap", "x", -1), Raises("ValueError")),
]

grade_module(FILES, CASES)
