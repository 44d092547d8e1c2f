#!/bin/sh
# The table lacks an entry; it has to be added.
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


change('roman.py', [
    ('("L", 50), ("X", 10)', '("L", 50), ("XL", 40), ("X", 10)'),
])
EOF
