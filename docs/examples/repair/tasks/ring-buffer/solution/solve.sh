#!/bin/sh
# Advance by one when full, and wrap around at the number of slots when popping: two faults.
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


change('ring.py', [
    ('        value = self.slots[self.start]\n        self.start = (self.start + 1) % self.count\n        self.count -= 1', '        value = self.slots[self.start]\n        self.start = (self.start + 1) % len(self.slots)\n        self.count -= 1'),
    ('            self.start = (self.start + 2) % len(self.slots)\n\n', '            self.start = (self.start + 1) % len(self.slots)\n\n'),
])
EOF
