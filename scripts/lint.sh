#!/usr/bin/env bash
# Prepare .venv, then check style, types, layers, the C sources and the generated pages. The checks change nothing.
# Every check runs even after one has failed. The failed checks are listed at the end.
#
#   --numbers   print the size, the structure and the wording of the package in numbers, and check nothing
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
bash scripts/setup.sh || exit 1
bin=$root/.venv/bin
[[ ${1:-} != --numbers ]] || exec "$bin/python" scripts/package-numbers.py
failed=()

check() { # NAME COMMAND…
    local name=$1
    shift
    echo "lint: $name" >&2
    "$@" || failed+=("$name")
}

compile_c() {
    local source
    for source in csrc/*.c; do
        "${CC:-cc}" -std=gnu11 -O2 -fPIC -Wall -Wextra -Werror -fvisibility=hidden -fexceptions -c -o /dev/null "$source" || return 1
    done
}

check_layers() { # the banner is long, so it is shown only if a contract is broken
    local report
    report=$("$bin/lint-imports" --no-cache 2>&1) || { printf '%s\n' "$report"; return 1; }
}

check "format" "$bin/ruff" format --check --quiet .
check "style" "$bin/ruff" check --quiet .
check "types" "$bin/mypy"
check "layers" check_layers
check "os.environ" "$bin/python" scripts/check-environ.py
check "classes of the core" "$bin/python" scripts/check-classes.py
check "file length" "$bin/python" scripts/check-length.py
check "class names" "$bin/python" scripts/check-names.py
check "kinds of rank" "$bin/python" scripts/check-kinds.py
check "C" compile_c
[[ ! -f scripts/make-docs.py ]] || check "generated pages" "$bin/python" scripts/make-docs.py --check
! command -v shellcheck >/dev/null || check "shell" shellcheck -x .ci/run scripts/*.sh examples/*.sh

if ((${#failed[@]})); then
    printf 'lint: FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "lint: all clean" >&2
