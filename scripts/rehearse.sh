#!/usr/bin/env bash
# Rehearse the twelve scripts of examples/scripts as a user does (`taskd run --rehearse`). Six scripts are exact. The
# other six have one mistake each, which the verdict must name by file and line. About 10 minutes on 2 cores. Exit
# status 0 if every verdict is right.
#
#   bash scripts/rehearse.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec nice .venv/bin/python -m tests.rehearsal "$@"
