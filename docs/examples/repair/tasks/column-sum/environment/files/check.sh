#!/bin/sh
# Visible tests of sum.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/sum.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

table() { printf 'name;pieces;price\nnut;2;30\nbolt;5;70\n'; }
expect "a column" "7" "$(table | run 2)"
expect "another column" "100" "$(table | run 3)"
expect "only a heading" "0" "$(echo 'a;b' | run 1)"
expect "no column" "no column x" "$(run x)"

cd "$here" && rm -r "$folder"
exit $failed
