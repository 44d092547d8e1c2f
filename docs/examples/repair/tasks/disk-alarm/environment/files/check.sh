#!/bin/sh
# Visible tests of alarm.sh: one line each, `ok` or `not ok`. Runs in a folder of its own.
here=$(pwd)
folder=$(mktemp -d) || exit 2
cd "$folder" || exit 2
run() { sh "$here/alarm.sh" "$@"; }
failed=0
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: expected '$2', got '$3'"
        failed=1
    fi
}

disks() { printf '# disks\nroot 50 100\ndata 9 10\n\ntmp 0 0\n'; }
expect "above" "data: 90% tmp: no size 1 of them are full" "$(echo $(disks | run 60))"
expect "exactly" "data: 90% tmp: no size 1 of them are full" "$(echo $(disks | run 90))"
expect "none" "tmp: no size 0 of them are full" "$(echo $(disks | run 95))"

cd "$here" && rm -r "$folder"
exit $failed
