#!/usr/bin/env bash
# Injects one fault after another into a running job of 4 ranks, and checks what the job says of each: which fault, whose,
# and how soon; and that the training goes on. Needs root (namespaces, cgroups). About 10 minutes on 2 cores. Exit
# status 0 if all were told right.
#
#   bash scripts/faults.sh [--json] [--only TEXT] [--list]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.faults "$@"
