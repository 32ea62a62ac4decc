#!/usr/bin/env bash
# Rehearses the twelve scripts of examples/scripts as a user does (`taskd run --rehearse`): six are exact, six have a mistake
# each, which must be named by file and line. About 10 minutes on 2 cores. Exit status 0 if every verdict is right.
#
#   bash scripts/rehearse.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec nice .venv/bin/python -m tests.rehearsal "$@"
