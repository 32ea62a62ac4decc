#!/usr/bin/env bash
# Kill ranks of jobs with sharded models (FSDP2, HSDP, tensor parallel, pipelines, ZeRO-1), one after the other, in the
# middle of backward passes, collectives, accumulated micro-batches and commits. Each job must recover in place, and end
# with the weights, optimizer states and buffers of an undisturbed job. About 12 minutes on 2 cores. Exit status 0 if
# all jobs did.
#
#   bash scripts/sharded.sh [--json] [--only TEXT]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.sharded "$@"
