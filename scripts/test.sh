#!/usr/bin/env bash
# Prepare .venv and run the tests: about 45 minutes on 2 cores. Many tests run in parallel with the rest, on the
# processor time that the rest leaves idle; those that bound a duration (marker `timed`) do not.
#
#   --thorough   run only the tests that are left out otherwise: further cases of the properties that other tests check
#   --quiet      passed to pytest
#   other arguments go to pytest, which then leaves no test out: scripts/test.sh tests/wire -k garbage
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -u tests/startup/taskd_tests_startup.* "$site" # the module first; only processes of tests load it
# Under PYTHONDONTWRITEBYTECODE, each of thousands of processes would otherwise compile its imports of these packages.
.venv/bin/python -m compileall -q taskd tests >/dev/null || true
# Variables of an earlier job in the same shell must not reach the tests.
for name in $(compgen -e | grep -E '^(TASKD_|TORCHELASTIC_|RANK$|LOCAL_RANK$|WORLD_SIZE$|MASTER_(ADDR|PORT)$|LD_PRELOAD$)' || true); do
    unset "$name"
done
pytest=(.venv/bin/python -m pytest)
case "$*" in
--thorough) exec "${pytest[@]}" -m thorough ;;
"" | --quiet) pytest+=(-m "not thorough" "$@") ;;
*) exec "${pytest[@]}" "$@" ;;
esac
echo "test: about 45 minutes on 2 cores; --thorough runs what is left out here" >&2
# Lanes that run in parallel with the rest, each at a lower priority.
simulated=(tests/{clusters,config,core,examples,sim,trainers})
trained=(tests/training)
compared=(tests/{cli,scripts,seams,torchrun})
jobs=(tests/{actors,api,bare,ends,groups,harness,sharded} tests/e2e/test_{builds,chaos,ends,kills,loops,manager,nccl,newcomers,outsiders,scripts,setup,wrappers}.py)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
others=(-m "not thorough and not timed" --timeout=600)
nice -n 19 "${pytest[@]}" "${others[@]}" "${simulated[@]}" >"$logs/simulated" 2>&1 &
beside=($!)
# The next lane is separate because otherwise one core would be idle at the end.
nice -n 15 "${pytest[@]}" "${others[@]}" "${trained[@]}" >"$logs/trained" 2>&1 &
beside+=($!)
nice -n 10 "${pytest[@]}" "${others[@]}" "${compared[@]}" >"$logs/compared" 2>&1 &
beside+=($!)
nice -n 10 "${pytest[@]}" "${others[@]}" "${jobs[@]}" >"$logs/jobs" 2>&1 &
beside+=($!)
status=0
"${pytest[@]}" "${simulated[@]/#/--ignore=}" "${trained[@]/#/--ignore=}" "${compared[@]/#/--ignore=}" "${jobs[@]/#/--ignore=}" || status=$?
"${pytest[@]}" -m "not thorough and timed" "${simulated[@]}" "${trained[@]}" "${compared[@]}" "${jobs[@]}" || status=$?
for lane in "${beside[@]}"; do
    wait "$lane" || status=$?
done
echo "test: beside these, ${simulated[*]}:"
cat "$logs/simulated"
echo "test: ${trained[*]}:"
cat "$logs/trained"
echo "test: ${compared[*]}:"
cat "$logs/compared"
echo "test: and ${jobs[*]}:"
cat "$logs/jobs"
exit "$status"
