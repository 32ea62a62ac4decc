#!/usr/bin/env bash
# Run jobs under taskd on bare machines and in containers: no numpy, few descriptors, older distributions, seccomp, odd
# folders, users, signals and variables. In each environment, the job must run at least as well as under stock torchrun,
# or taskd must leave it to torchrun and report that in one sentence before a rank starts. Needs root. About 15 minutes
# on 2 cores. The first time takes some 2 minutes more, for the root file systems that debootstrap makes in
# ~/.cache/taskd-bare. Exit status 0 if every environment passed.
#
#   bash scripts/bare.sh [--json] [--only NAME] [--list] [--keep] [--at-once N] [--with PACKAGE]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.bare "$@"
