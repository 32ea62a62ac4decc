#!/usr/bin/env bash
# Prepares .venv and runs every test. Arguments go to pytest: scripts/test.sh tests/wire -k garbage
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
if (($# == 0)); then
    echo "test: all tests, about 30 minutes on 2 cores" >&2
fi
# What a shell that once started a job has left behind must not reach the tests.
for name in $(compgen -e | grep -E '^(TASKD_|TORCHELASTIC_|RANK$|LOCAL_RANK$|WORLD_SIZE$|MASTER_(ADDR|PORT)$|LD_PRELOAD$)' || true); do
    unset "$name"
done
exec .venv/bin/python -m pytest "$@"
