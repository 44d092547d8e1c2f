#!/bin/sh
# Quote line breaks when writing, and keep a doubled quote when reading: two faults.
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


change('records.py', [
    ('\',"\'', '\',"\\n\\r\''),
    ('                at += 1\n            else', '                field += mark\n                at += 1\n            else'),
])
EOF
