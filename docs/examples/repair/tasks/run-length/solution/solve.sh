#!/bin/sh
# A run of two has a count, and no count means one: two faults in two functions.
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


change('runs.py', [
    ('        if count > 2:', '        if count > 1:'),
    ('int(count or 0)', 'int(count or 1)'),
])
EOF
