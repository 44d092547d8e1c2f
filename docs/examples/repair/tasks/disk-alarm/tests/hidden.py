"""Hidden cases of disk-alarm. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["alarm.sh"]
CASES = [
    script((["100"], "a 5 5\n"), stdout="a: 100%\n1 of them are full\n"),
    script((["99"], "a 5 5\nb 1 3\n"), stdout="a: 100%\n1 of them are full\n"),
    script((["0"], "a 0 9\n"), stdout="a: 0%\n1 of them are full\n"),
    script((["34"], "b 1 3\n"), stdout="0 of them are full\n"),
    script((["33"], "b 1 3\n"), stdout="b: 33%\n1 of them are full\n"),
    script((["50"], "#x 1 1\n\nz 0 0\n"), stdout="z: no size\n0 of them are full\n"),
]

grade_script(FILES, CASES)
