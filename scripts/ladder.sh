#!/usr/bin/env bash
# Plays one scenario for each recovery strategy and for each part that may die, on 3 to 4 nodes that are network namespaces
# of this machine (needs root), with examples/digits_ddp.py. About 10 minutes on 2 cores. Exit status 0 if all held.
#
#   bash scripts/ladder.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.ladder "$@"
