"""Hidden cases of shell-options. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["greet.sh"]
CASES = [
    script(["a b", "c"], stdout="hello a b\nhello c\n", status=0),
    script(["-u", "-n", "3", "x"], stdout="HELLO x\n" * 3, status=0),
    script(["-n", "0", "x"], stdout="", tree={}, status=0),
    script(["--", "-n"], stdout="hello -n\n", status=0),
    script(["-n", "2"], stdout="greet: no name\n", status=2),
    script(["-u", "-n"], stdout="greet: -n needs a number\n", status=2),
    script([], stdout="greet: no name\n", status=2),
    script(["x", "-u"], stdout="hello x\nhello -u\n", status=0),
]

grade_script(FILES, CASES)
