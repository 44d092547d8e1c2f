"""Hidden cases of path-normalise. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module

FILES = ["paths.py"]
CASES = [
    (call("normalise", "/../../.."), "/"),
    (call("normalise", "../../x/.."), "../.."),
    (call("normalise", ""), "."),
    (call("normalise", "a/.."), "."),
    (call("normalise", "/a/./../b//c/.."), "/b"),
    (call("normalise", "../.."), "../.."),
    (call("inside", "/../srv/x", "/srv"), True),
    (call("inside", "/srv", "/srv/"), True),
    (call("inside", "../a", "a"), False),
    (call("inside", "/x", "/"), True),
]

grade_module(FILES, CASES)
