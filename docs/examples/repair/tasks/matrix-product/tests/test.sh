#!/bin/sh
# Grades what the agent handed in. The reward is written by harness.py and by nothing else.
set -eu
PATH=/usr/bin:/bin
exec python3 -I -S -B "$(dirname "$0")/hidden.py"
