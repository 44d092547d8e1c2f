#!/bin/sh
# rotate.sh FILE KEEP: FILE becomes FILE.1, FILE.1 becomes FILE.2 and so on; KEEP old ones stay.
set -eu
file=$1
keep=$2

if [ ! -s "$file" ]; then
    echo "nothing to rotate"
    exit 0
fi
number=1
while [ "$number" -lt "$keep" ]; do
    older=$((number + 1))
    if [ -e "$file.$number" ]; then
        mv "$file.$number" "$file.$older"
    fi
    number=$older
done
mv "$file" "$file.1"
: > "$file"
echo "rotated $file"
