#!/bin/sh
# Visible tests of sizes.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/sizes.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

printf abc > a
printf abcde > "b c"
expect "one file" "3 a 3 total" "$(echo $(run a))"
expect "a missing file" "missing x 0 total" "$(echo $(run x))"
expect "a name with a space" "5 b c 5 total" "$(echo $(run "b c"))"
expect "two files" "3 a 5 b c 8 total" "$(echo $(run a "b c"))"

cd "$here" && rm -r "$folder"
exit $failed
