#!/usr/bin/env bash
# Attack jobs, one after the other: from the network, as another user of the machine, with the job's own secret, by
# mistake, and from the job's own code. After each attack a rank is killed. Each job must recover and end with the
# weights of an undisturbed job. Needs root (other users, namespaces). About 15 minutes on 2 cores. Exit status 0 if
# all jobs did.
#
#   bash scripts/attacks.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.attacks "$@"
