"""Hidden cases of file-sizes. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["sizes.sh"]
CASES = [
    script(["x  y"], files={"x  y": "1234"}, stdout="4 x  y\n4 total\n"),
    script(["*", "a"], files={"a": "12", "*": "1"}, stdout="1 *\n2 a\n3 total\n"),
    script([], stdout="0 total\n"),
    script(["p q", "p"], files={"p": "1"}, stdout="missing p q\n1 p\n1 total\n"),
    script(["empty"], files={"empty": ""}, stdout="0 empty\n0 total\n"),
    script(["a\tb"], files={"a\tb": "xyz"}, stdout="3 a\tb\n3 total\n"),
]

grade_script(FILES, CASES)
