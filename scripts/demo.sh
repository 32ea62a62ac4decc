#!/usr/bin/env bash
# Shows what taskd does: trains a CNN on handwritten digits with 4 ranks, kills 5 of them with SIGKILL at random steps,
# rank 0 among them, and compares the weights with those of a run without a fault. Needs nothing but Python 3.10 or
# newer, a C compiler and a package index. About 2 minutes, the first time plus the downloads.
#
#   bash scripts/demo.sh [--json] [--seed N] [--faults N]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
echo "demo: prepares .venv, then trains twice: once undisturbed, once with faults (about 2 minutes)" >&2
bash scripts/setup.sh
export PATH=$root/.venv/bin:$PATH
# The line of the Dockerfile, unchanged. A second run of it does no harm, but one line is enough.
run_py=$(pip3 show torch | grep Location | awk -F ' ' '{print $2}')/torch/distributed/run.py
grep -q 'import taskd.python.adaptor.patch' "$run_py" ||
    sed -i '/import os/i import taskd.python.adaptor.patch' $(pip3 show torch | grep Location | awk -F ' ' '{print $2}')/torch/distributed/run.py
exec python scripts/demo.py "$@"
