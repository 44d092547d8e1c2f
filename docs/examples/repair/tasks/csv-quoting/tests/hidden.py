"""Hidden cases of csv-quoting. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["records.py"]
CASES = [
    (call("write_record", ["a\rb"]), '"a\rb"\n'),
    (call("write_record", ["a\nb", 'c"d']), '"a\nb","c""d"\n'),
    (call("write_record", ["", "x y"]), ",x y\n"),
    (call("read_records", '""""\n'), [['"']]),
    (call("read_records", '"a""""b",""\n'), [['a""b', ""]]),
    (call("read_records", '"x\ny",z'), [["x\ny", "z"]]),
    (call("read_records", "a\n\nb\n"), [["a"], [""], ["b"]]),
    (call("read_records", ""), []),
    (call("read_records", '"'), Raises("ValueError")),
]

grade_module(FILES, CASES)
