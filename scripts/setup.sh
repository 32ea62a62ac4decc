#!/usr/bin/env bash
# Make .venv at the root of the repository, with torch, taskd (editable) and all its extras. Every other script first
# calls this one. If none of its inputs has changed, it does nothing and ends within a fraction of a second.
#
#   TASKD_TORCH   pip's arguments for the installation of torch, default "torch==2.13.0"; for example
#                 "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
#   TASKD_VENV    folder of the environment, default ".venv"
#   TASKD_EXTRAS  extras of taskd to install, default "test,lint,examples,stacks"
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
torch=${TASKD_TORCH:-torch==2.13.0}
venv=$root/${TASKD_VENV:-.venv}
extras=${TASKD_EXTRAS:-test,lint,examples,stacks}
stamp=$venv/taskd-setup.sha256

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$@" >&2; exit 1; }

wanted() { # one hash over all inputs of the environment
    {
        printf '%s\n' "$root" "$torch" "$extras"
        cat pyproject.toml setup.py scripts/setup.sh
        find csrc -type f -name '*.[ch]' -o -type f -path 'csrc/*.py' | LC_ALL=C sort | xargs -r cat
    } | sha256sum
}

have_outputs() { [[ -x $venv/bin/taskd && -f taskd/python/cython_api/libs/libtaskd.so && -f taskd/runtime/_box.py ]]; }

check_machine() {
    local python=$1
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        die "found $("$python" --version 2>&1 || echo "no $python"), expected Python 3.10 or newer." \
            "Install one, or put it first on PATH."
    command -v "${CC:-cc}" >/dev/null ||
        die "found no C compiler (${CC:-cc}); libtaskd.so is built from csrc/." \
            "Install one: 'apt-get install gcc libc6-dev', 'dnf install gcc', or set CC."
}

make_venv() {
    [[ -x $venv/bin/python ]] && return
    say "creating $venv with $(python3 --version)"
    python3 -m venv "$venv" || die "python3 cannot make a virtual environment." "On Debian and Ubuntu: 'apt-get install python3-venv'."
}

site_packages() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

install() {
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)
    # The build's requirements go into the environment too. So the build is not isolated and needs no second download.
    local build
    build=$(sed -n 's/^requires = \[\(.*\)\]$/\1/p' pyproject.toml | sed 's/", "/" "/g') # quoted words, as xargs reads them
    [[ -d $(site_packages)/torch ]] || say "installing $torch (some 200 MB for a CPU; the largest part)"
    # shellcheck disable=SC2086 # TASKD_TORCH may hold several arguments
    "${pip[@]}" $torch || die "pip could not install '$torch'." "It needs a package index; TASKD_TORCH chooses another torch or index."
    say "building and installing taskd with its extras"
    xargs "${pip[@]}" <<<"$build" || die "pip could not install what the build needs: $build"
    "${pip[@]}" --no-build-isolation --editable ".[$extras]" || die "pip could not install taskd; its reason is above."
    # `pip show taskd | awk '/^Location: /'` prints site-packages, and launch scripts expect libtaskd.so below it.
    ln -sfn "$root/taskd" "$(site_packages)/taskd"
    have_outputs || die "the installation left no 'taskd' command, no libtaskd.so or no taskd/runtime/_box.py, though pip reported success." "Please report it."
}

hash=$(wanted)
if [[ -f $stamp && $(<"$stamp") == "$hash" ]] && have_outputs; then
    exit 0
fi
started=$SECONDS
say "preparing $venv (first time: 1 to 5 minutes, most of it downloads)"
if [[ -x $venv/bin/python ]]; then check_machine "$venv/bin/python"; else check_machine python3; fi
make_venv
install
printf '%s\n' "$hash" >"$stamp"
say "done in $((SECONDS - started)) s"
