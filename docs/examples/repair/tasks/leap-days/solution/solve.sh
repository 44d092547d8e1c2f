#!/bin/sh
# The rule of 400 years is missing; no change of a single operator or number brings it back.
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


change('calendar_days.py', [
    ('year % 4 == 0 and year % 100 != 0', 'year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)'),
])
EOF
