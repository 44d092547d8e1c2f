#!/bin/sh
# Visible tests of backup.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/backup.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

echo one > f
expect "the first copy" "f.bak" "$(run f)"
echo two > f
expect "the second copy" "f.bak1" "$(run f)"
expect "the first copy is untouched" "one" "$(cat f.bak)"
expect "no file" "no file g" "$(run g)"
expect "usage" "usage: backup.sh FILE" "$(run)"

cd "$here" && rm -r "$folder"
exit $failed
