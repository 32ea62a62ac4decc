#!/usr/bin/env bash
# Train under torchrun with taskd in modified versions of torch. In each, a single name that taskd relies on differs
# from the installed torch: it is renamed, or has other parameters. Each job must reach its end with the weights of
# plain torchrun and one warning. About 190 jobs, 35 minutes on 2 cores. Exit status 0 if all did.
#
#   bash scripts/seams.sh [--json] [--only WORD] [--list]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.seams "$@"
