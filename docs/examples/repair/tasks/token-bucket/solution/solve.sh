#!/bin/sh
# Equal is enough, and a rate is multiplied with time: two faults, each seen by a test of its own.
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


change('bucket.py', [
    ('if self.tokens <= count:', 'if self.tokens < count:'),
    ('elapsed / self.per_second)', 'elapsed * self.per_second)'),
])
EOF
