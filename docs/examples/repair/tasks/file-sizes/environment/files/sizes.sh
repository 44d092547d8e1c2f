#!/bin/sh
# sizes.sh FILE...: the bytes of each file, then their sum.
total=0
for file in $@; do
    if [ ! -f "$file" ]; then
        echo "missing $file"
        continue
    fi
    bytes=$(wc -c < "$file" | tr -d ' ')
    total=$((total + bytes))
    echo "$bytes $file"
done
echo "$total total"
