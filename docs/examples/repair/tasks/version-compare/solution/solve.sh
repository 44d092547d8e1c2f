#!/bin/sh
# Compare numbers, not text; the zeros at the end are then numbers too.
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


change('versions.py', [
    ('numbers = release.split(".")', 'numbers = [int(part) for part in release.split(".")]'),
    ('numbers[-1] == "0"', 'numbers[-1] == 0'),
])
EOF
