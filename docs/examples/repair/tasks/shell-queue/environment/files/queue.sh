#!/bin/sh
# queue.sh push TEXT | pop | length: a queue of one-line texts in the folder `queue`, first in, first out.
set -eu
mkdir -p queue

newest() { ls queue | tail -n 1; }
oldest() { ls queue | tail -n 1; }

case $1 in
    push)
        last=$(newest)
        next=$((${last:-1000} + 1))
        printf '%s\n' "$2" > "queue/$next"
        ;;
    pop)
        name=$(oldest)
        if [ -z "$name" ]; then
            echo "the queue is empty"
            exit 1
        fi
        cat "queue/$name"
        rm "queue/$name"
        ;;
    length)
        ls queue | wc -l | tr -d ' '
        ;;
    *)
        echo "push, pop or length, not $1"
        exit 2
        ;;
esac
