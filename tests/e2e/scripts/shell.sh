#!/bin/sh
# A rank that is a shell, with Python as its child.
"$PYTHON" "$(dirname "$0")/hold.py" "$1"
exit $?
