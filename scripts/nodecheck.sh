#!/usr/bin/env bash
# Run the scenarios of the node check: healthy, faulty and slow nodes, slow and cut links. The 2 to 6 nodes are network
# namespaces of this machine (needs root). About 9 minutes on 2 cores. Exit status 0 if every diagnosis was right and
# every job trained to its end.
#
#   bash scripts/nodecheck.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.checks "$@"
