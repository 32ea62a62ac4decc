#!/bin/sh
# A wrapper that becomes the rank.
exec "$PYTHON" "$@"
