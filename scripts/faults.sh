#!/usr/bin/env bash
# Inject one fault after another into a running job of 4 ranks. The job must report each fault with the right kind and
# the right culprit, and soon enough, and the training must continue. Needs root (namespaces, cgroups). About 10 minutes
# on 2 cores. Exit status 0 if every report was right.
#
#   bash scripts/faults.sh [--json] [--only TEXT] [--list]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.faults "$@"
