#!/bin/sh
# alarm.sh LIMIT: reads `name used size` lines and names what is used to LIMIT percent or more.
limit=$1
full=0
while read -r name used size; do
    case $name in
        '' | '#'*) continue ;;
    esac
    if [ "$size" -eq 0 ]; then
        echo "$name: no size"
        continue
    fi
    percent=$((used * 100 / size))
    if [ "$percent" -gt "$limit" ]; then
        echo "$name: $percent%"
        full=$((full + 1))
    fi
done
echo "$full of them are full"
