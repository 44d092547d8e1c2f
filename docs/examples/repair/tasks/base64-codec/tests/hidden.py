"""Hidden cases of base64-codec. The agent never sees this file."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import call, grade_module, Raises

FILES = ["codec.py"]
import base64

SAMPLES = [b"", b"\0", b"\xff\xfe", b"\xfb\xff\xbf", b"any carnal pleas", bytes(range(256))]
CASES = [(call("encode", list(data)), base64.b64encode(data).decode()) for data in SAMPLES]
CASES += [(call("decode", base64.b64encode(data).decode()), list(data)) for data in SAMPLES]
CASES += [(call("decode", "A"), Raises("ValueError")), (call("decode", "A*=="), Raises("ValueError"))]

grade_module(FILES, CASES)
