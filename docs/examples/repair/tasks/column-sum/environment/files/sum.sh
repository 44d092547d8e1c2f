#!/bin/sh
# sum.sh COLUMN: adds up a column (from 1) of the semicolon-separated lines on standard input, without the heading.
column=$1
case $column in
    '' | *[!0-9]* | 0)
        echo "no column $column"
        exit 2
        ;;
esac
total=0
lines=0
while IFS= read -r line; do
    lines=$((lines + 1))
    if [ "$lines" -eq 1 ]; then
        continue
    fi
    value=$(printf '%s\n' "$line" | cut -d ';' -f "$column")
    total=$((total + ${value:-0}))
done
echo "$total"
