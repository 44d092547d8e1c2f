#!/bin/sh
# Visible tests of greet.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/greet.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

expect "one name" "hello ann" "$(run ann)"
expect "twice" "hello bob hello bob" "$(echo $(run -n 2 bob))"
expect "upper case" "HELLO ann" "$(run -u ann)"
expect "no number" "greet: -n needs a number" "$(run -n)"
expect "a number and no name" "greet: no name" "$(run -n 1)"
expect "unknown" "greet: unknown option -x" "$(run -x ann)"

cd "$here" && rm -r "$folder"
exit $failed
