#!/bin/sh
# Visible tests of queue.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/queue.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

expect "empty" "the queue is empty" "$(run pop)"
run push first
run push "second text"
expect "length" "2" "$(run length)"
expect "first in, first out" "first" "$(run pop)"
expect "then the next" "second text" "$(run pop)"

cd "$here" && rm -r "$folder"
exit $failed
