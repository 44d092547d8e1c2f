"""Hidden cases of column-sum. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["sum.sh"]
CASES = [
    script((["2"], "n;v\na;1\nb;2"), stdout="3\n"),
    script((["1"], "n\n4"), stdout="4\n"),
    script((["2"], "n;v\na;\nb;5\n"), stdout="5\n"),
    script((["1"], ""), stdout="0\n"),
    script((["2"], "n;v\na;-3\nb;10\n"), stdout="7\n"),
    script((["0"], "n\n"), stdout="no column 0\n", status=2),
]

grade_script(FILES, CASES)
