"""Hidden cases of backup-name. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["backup.sh"]
MANY = {f"f.bak{n}": "old" for n in [""] + list(range(1, 10))}
CASES = [
    script(["f"], files={"f": "x"}, stdout="f.bak\n", tree={"f": "x", "f.bak": "x"}),
    script(["f"], files={"f": "x", "f.bak": "old"}, stdout="f.bak1\n", tree={"f": "x", "f.bak": "old", "f.bak1": "x"}),
    script(["f"], ["f"], ["f"], files={"f": "x"}, stdout="f.bak\nf.bak1\nf.bak2\n"),
    script(["f"], files={"f": "x", "f.bak": ""}, stdout="f.bak1\n", tree={"f": "x", "f.bak": "", "f.bak1": "x"}),
    script(["f"], files={"f": "x", **MANY}, stdout="too many copies of f\n", tree={"f": "x", **MANY}, status=1),
    script(["a b"], files={"a b": "x", "a b.bak": "y"}, stdout="a b.bak1\n"),
    script(["f", "g"], files={"f": "x"}, stdout="usage: backup.sh FILE\n", status=2),
]

grade_script(FILES, CASES)
