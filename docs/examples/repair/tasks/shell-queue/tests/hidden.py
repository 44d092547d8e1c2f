"""Hidden cases of shell-queue. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["queue.sh"]
CASES = [
    script(["push", "a"], ["push", "b"], ["push", "c"], ["pop"], ["pop"], ["push", "d"], ["pop"], ["pop"], stdout="a\nb\nc\nd\n"),
    script(["push", "a"], ["pop"], ["push", "b"], ["push", "c"], ["pop"], ["length"], stdout="a\nb\n1\n"),
    script(["pop"], stdout="the queue is empty\n", status=1),
    script(["length"], stdout="0\n", status=0),
    script(["push", "-n x"], ["push", "*"], ["pop"], ["pop"], stdout="-n x\n*\n"),
    script(["drop"], stdout="push, pop or length, not drop\n", status=2),
]

grade_script(FILES, CASES)
