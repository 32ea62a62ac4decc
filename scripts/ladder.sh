#!/usr/bin/env bash
# Run one scenario for each recovery strategy and for each component that may die, with examples/digits_ddp.py. The 3 to
# 4 nodes are network namespaces of this machine (needs root). About 10 minutes on 2 cores. Exit status 0 if all passed.
#
#   bash scripts/ladder.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.ladder "$@"
