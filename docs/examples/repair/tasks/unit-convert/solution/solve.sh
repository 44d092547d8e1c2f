#!/bin/sh
# The offset of 32 belongs before the factor in one formula and after it in the other.
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


change('units.py', [
    ('value * 5 / 9 - 32', '(value - 32) * 5 / 9'),
    ('(celsius + 32) * 9 / 5', 'celsius * 9 / 5 + 32'),
])
EOF
