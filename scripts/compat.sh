#!/usr/bin/env bash
# Check the README's promises with other versions of torch. Each version gets a fresh copy of this checkout with its own
# environment. The copy is outside of the checkout and is removed afterwards. The output has one line for each promise,
# and docs/torch-versions.md gets the table of the checked versions. Each version takes 15 GB of disk and some 8 minutes
# on 2 cores, downloads included. Needs root for the scenarios with several nodes. Exit status 0 if every promise was
# kept.
#
#   bash scripts/compat.sh [--json] [--only TEXT] [--list] [VERSION …]     (default: one of each minor)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec python3 "$root/scripts/compat.py" "$@"
