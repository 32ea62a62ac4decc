#!/usr/bin/env bash
# Run torch's own tests of its launcher and agent twice, without taskd and with it, and list the tests that differ. They
# are not in torch's wheels: give a checkout of the installed version of torch. About 5 minutes on 2 cores.
#
#   bash scripts/torch-tests.sh CHECKOUT [TEST ...]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
checkout=$(realpath -- "${1:-.}")
cd "$root"
bash scripts/setup.sh
exec .venv/bin/python -m tests.torchrun.torch_tests "$checkout" "${@:2}"
