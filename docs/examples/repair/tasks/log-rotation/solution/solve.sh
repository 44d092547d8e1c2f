#!/bin/sh
# Move the oldest first, so that no move lands on a file still needed.
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


change('rotate.sh', [
    ('number=1\nwhile [ "$number" -lt "$keep" ]; do\n    older=$((number + 1))\n    if [ -e "$file.$number" ]; then\n        mv "$file.$number" "$file.$older"\n    fi\n    number=$older\ndone', 'number=$keep\nwhile [ "$number" -gt 1 ]; do\n    older=$number\n    number=$((number - 1))\n    if [ -e "$file.$number" ]; then\n        mv "$file.$number" "$file.$older"\n    fi\ndone'),
])
EOF
