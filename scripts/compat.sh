#!/usr/bin/env bash
# Tries what the README promises with other versions of torch: for each a fresh copy of this checkout with an environment
# of its own, outside of it, removed afterwards. One line for each promise; docs/torch-versions.md gets the table of the
# versions that were tried. 15 GB of disk and some 8 minutes for each version on 2 cores, downloads included. Needs root for
# the scenarios with several nodes. Exit status 0 if every promise was kept.
#
#   bash scripts/compat.sh [--json] [--only TEXT] [--list] [VERSION …]     (default: one of each minor)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec python3 "$root/scripts/compat.py" "$@"
