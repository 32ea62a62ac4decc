#!/usr/bin/env bash
# Run all headline benchmarks, one after another, and compare each figure with its bar and its stated value
# (benchmarks/figures.json). Needs a quiet machine. Exit status 1: a figure is broken or worse, or a command failed.
#
#   --quick    fewer pairs: 6 minutes at most
#   --all      every command of the file: about an hour, some of it as root
#   --record   write the figures into the file and the pages
#   --json     JSON in the last line
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m benchmarks.check_figures "$@"
