#!/bin/sh
# Stop at the count, and two words are enough for -n: two faults.
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


change('greet.sh', [
    ('if [ $# -lt 3 ]; then', 'if [ $# -lt 2 ]; then'),
    ('while [ "$count" -le "$times" ]; do', 'while [ "$count" -lt "$times" ]; do'),
])
EOF
