#!/bin/sh
# Visible tests of rotate.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/rotate.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

echo one > log
expect "says what it did" "rotated log" "$(run log 3)"
expect "the first old one" "one" "$(cat log.1)"
echo two > log
run log 3 > said
echo three > log
run log 3 > said
expect "the order of the old ones" "three two one" "$(echo $(cat log.1 log.2 log.3))"
expect "an empty log stays" "nothing to rotate" "$(run log 3)"

cd "$here" && rm -r "$folder"
exit $failed
