#!/usr/bin/env bash
# Run scripts as users write them, under torchrun with taskd. Each runs once undisturbed, and once with two kills at
# seeded moments or with kills at the places that the catalog names. Three outcomes are right: recovered in place with
# an identical result, refused beforehand with file and line, or restarted with the result of stock torchrun.
# A silently different result is wrong. About 60 minutes on 2 cores. Exit status 0 if no result was silently different,
# no script failed, and every verdict of the self-check was right.
#
# --unseen runs the scripts that were written without knowledge of taskd's checks. --mutation runs the scripts that need
# a certain mechanism, without it. "unchecked" switches the self-check off: at least 12 must be silently different.
# "walks-alone" leaves only the walks of the self-check: none may be silently different. "unmended" removes the
# corrections for a few kinds of scripts: all must end differently.
#
#   bash scripts/scripts.sh [--json] [--only NAME] [--unseen | --mutation unchecked|walks-alone|unmended] [--list] [--random-kills N] [--seed S] [--keep]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec nice .venv/bin/python -m tests.scripts "$@"
