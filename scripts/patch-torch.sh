#!/usr/bin/env bash
# Run `taskd patch` from a checkout, without an installed taskd. It inserts `import taskd.python.adaptor.patch` into
# torchrun's run.py, removes it again, or reports whether it is there.
#
#   scripts/patch-torch.sh apply|revert|status [--python PYTHON] [--file RUN_PY]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec python3 -m taskd patch "$@"
