#!/bin/bash
# A wrapper that uses another Python process first, and then has the rank as its child.
"$PYTHON" -c "${LOOK:-print('the wrapper has looked')}"
"$PYTHON" "$@"
