#!/bin/sh
# greet.sh [-n TIMES] [-u] [--] NAME...: greets each name.
times=1
upper=no
while [ $# -gt 0 ]; do
    case $1 in
        -n)
            if [ $# -lt 3 ]; then
                echo "greet: -n needs a number"
                exit 2
            fi
            times=$2
            shift 2
            ;;
        -u)
            upper=yes
            shift
            ;;
        --)
            shift
            break
            ;;
        -*)
            echo "greet: unknown option $1"
            exit 2
            ;;
        *)
            break
            ;;
    esac
done
if [ $# -eq 0 ]; then
    echo "greet: no name"
    exit 2
fi
for name in "$@"; do
    count=0
    while [ "$count" -le "$times" ]; do
        if [ "$upper" = yes ]; then
            echo "HELLO $name"
        else
            echo "hello $name"
        fi
        count=$((count + 1))
    done
done
