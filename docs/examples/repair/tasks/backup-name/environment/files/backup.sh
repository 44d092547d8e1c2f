#!/bin/sh
# backup.sh FILE: copies FILE to the first free name FILE.bak, FILE.bak1, FILE.bak2 ... and prints it.
if [ $# -ne 1 ]; then
    echo "usage: backup.sh FILE"
    exit 2
fi
if [ ! -f "$1" ]; then
    echo "no file $1"
    exit 1
fi
name=$1.bak
number=0
while [ -d "$name" ]; do
    number=$((number + 1))
    if [ "$number" -gt 9 ]; then
        echo "too many copies of $1"
        exit 1
    fi
    name=$1.bak$number
done
cp "$1" "$name"
echo "$name"
