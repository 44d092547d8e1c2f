#!/bin/sh
# A missing branch and an index that goes one too far.
set -eu
cd "${REPAIR_WORKSPACE:-/workspace}"
exec python3 -I -S -B - <<'EOF'
import pathlib


def change(name, edits):
    path = pathlib.Path(name)
    text = path.read_text()
    for broken, fixed in edits:
        assert text.count(broken) == 1, f"{name} holds {text.count(broken)} times {broken!r}"
        text = text.replace(broken, fixed)
    path.write_text(text)


change('template.py', [
    ('        if mark == "{":', '        if template[at : at + 2] in ("{{", "}}"):\n            text += mark\n            at += 2\n        elif mark == "{":'),
    ('at = end + 2', 'at = end + 1'),
])
EOF
