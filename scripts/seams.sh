#!/usr/bin/env bash
# Trains under torchrun with taskd in torches that each differ from the installed one in a single place which taskd relies
# on: renamed, or with other parameters. Each job has to reach its end with the weights of plain torchrun and one warning.
# About 190 jobs, 35 minutes on 2 cores. Exit status 0 if all did.
#
#   bash scripts/seams.sh [--json] [--only WORD] [--list]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.seams "$@"
