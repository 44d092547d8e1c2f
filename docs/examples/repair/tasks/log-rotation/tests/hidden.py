"""Hidden cases of log-rotation. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import grade_script, script

FILES = ["rotate.sh"]
CASES = [
    script(["log", "2"], files={"log": "c", "log.1": "b", "log.2": "a"}, tree={"log": "", "log.1": "c", "log.2": "b"}),
    script(["log", "4"], files={"log": "c", "log.1": "b", "log.3": "a"}, tree={"log": "", "log.1": "c", "log.2": "b", "log.4": "a"}),
    script(["log", "1"], files={"log": "b", "log.1": "a"}, tree={"log": "", "log.1": "b"}),
    script(["a log", "2"], files={"a log": "x"}, stdout="rotated a log\n", tree={"a log": "", "a log.1": "x"}),
    script(["log", "3"], files={"log": "", "log.1": "a"}, stdout="nothing to rotate\n", tree={"log": "", "log.1": "a"}),
    script(["log", "3"], stdout="nothing to rotate\n", tree={}),
]

grade_script(FILES, CASES)
