#!/bin/sh
# Binary fractions cannot hold most amounts: count cents in whole numbers.
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


change('money.py', [
    ('    return sign * int(float(f"{whole or 0}.{fraction}") * 100 + 0.5)', '    fraction = fraction.ljust(3, "0")\n    cents = int(whole or "0") * 100 + int(fraction[:2])\n    if fraction[2] >= "5":\n        cents += 1\n    return sign * cents'),
])
EOF
