#!/usr/bin/env bash
# Prepares .venv and runs every test. Arguments go to pytest: scripts/test.sh tests/wire -k garbage
# All of them take about 30 minutes on 2 cores: those that measure no time run beside the rest, on what that leaves of the cores.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
# What a shell that once started a job has left behind must not reach the tests.
for name in $(compgen -e | grep -E '^(TASKD_|TORCHELASTIC_|RANK$|LOCAL_RANK$|WORLD_SIZE$|MASTER_(ADDR|PORT)$|LD_PRELOAD$)' || true); do
    unset "$name"
done
pytest=(.venv/bin/python -m pytest)
for argument; do
    if [[ $argument != --quiet ]]; then
        exec "${pytest[@]}" "$@"
    fi
done
echo "test: all tests, about 30 minutes on 2 cores" >&2
patient=(tests/clusters tests/config tests/core tests/examples tests/sim tests/training)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
nice -n 19 "${pytest[@]}" "$@" --timeout=600 "${patient[@]}" >"$log" 2>&1 &
beside=$!
status=0
"${pytest[@]}" "$@" "${patient[@]/#/--ignore=}" || status=$?
wait "$beside" || status=$?
echo "test: beside these, ${patient[*]}:"
cat "$log"
exit "$status"
