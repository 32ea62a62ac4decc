#!/usr/bin/env bash
# Plays scripts as users write them under torchrun with taskd, each with two kills at seeded moments, or with kills at the
# places that the catalog names, and undisturbed beside it: in place and identical, or refused beforehand with file and
# line, or restarted with stock torchrun's own result; never silently different. About 60 minutes on 2 cores. Exit status 0
# if nothing was silent, nothing failed, and the self-check's verdict was wrong for none.
# --unseen plays those that were written without a look at what taskd checks. --mutation plays those that need a mechanism:
# "unchecked" without the self-check (at least 12 must be silent), "walks-alone" with its walks alone (at least 6 must be
# refused), "unmended" without those that put few shapes of scripts right (all must end otherwise).
#
#   bash scripts/scripts.sh [--json] [--only NAME] [--unseen | --mutation unchecked|walks-alone|unmended] [--list] [--random-kills N] [--seed S] [--keep]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec nice .venv/bin/python -m tests.scripts "$@"
