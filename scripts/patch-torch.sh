#!/usr/bin/env bash
# Puts `import taskd.python.adaptor.patch` into torchrun's run.py, takes it out again, or tells whether it is there.
#
#   scripts/patch-torch.sh apply|revert|status [--python PYTHON] [--file RUN_PY]
#
# apply   adds the line before the module's own `import os`; done already (here or by sed) is fine
# revert  removes every such line; nothing else of the file changes
# status  says what is there; exit code 0 if it is, 1 if not
# Refuses (exit code 2) a file that it does not understand, and changes nothing then. The file is replaced as a whole,
# so that a copy that shares its inode (the cache of some installers) stays as it is.
set -euo pipefail
line='import taskd.python.adaptor.patch'

die() {
    echo "patch-torch.sh: $*" >&2
    exit 2
}

action=${1:-}
[[ $action =~ ^(apply|revert|status)$ ]] || die "found '${action:-nothing}', expected apply, revert or status"
shift
python=python3
file=
while (($#)); do
    [[ $# -ge 2 && $1 =~ ^--(python|file)$ ]] || die "found '$1', expected --python PYTHON or --file RUN_PY"
    if [[ $1 == --python ]]; then python=$2; else file=$2; fi
    shift 2
done
command -v "$python" >/dev/null || die "found no $python, expected the Python that has torch: give --python"
if [[ -z $file ]]; then
    file=$("$python" -c '
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("torch")
print(pathlib.Path(spec.origin).parent / "distributed" / "run.py" if spec and spec.origin else "")')
    [[ -n $file ]] || die "$python has no torch, expected an installed one: give --python"
fi
[[ -f $file ]] || die "found no file $file, expected torchrun's run.py"

present=$(grep -cxF "$line" "$file" || true)
mentioned=$(grep -cF "$line" "$file" || true)
[[ $mentioned == "$present" ]] || die "$file mentions the line in another form, expected it alone on its line; edit it by hand"

# Replaces the file by what stands on standard input, if that is Python that differs in our lines only.
replace() {
    local fresh
    fresh=$(mktemp "$file.XXXXXX")
    trap 'rm -f "$fresh"' EXIT
    cat >"$fresh"
    "$python" - "$file" "$fresh" "$line" <<'PYTHON' || die "$file would not be right afterwards; it is left as it was"
import ast, pathlib, sys

old, new = (pathlib.Path(name).read_bytes() for name in sys.argv[1:3])
ours = sys.argv[3].encode()
ast.parse(new)
strip = lambda data: [text for text in data.split(b"\n") if text != ours]
sys.exit(strip(old) != strip(new))
PYTHON
    chmod --reference="$file" "$fresh"
    chown --reference="$file" "$fresh" 2>/dev/null || true
    mv -f "$fresh" "$file"
    trap - EXIT
}

case $action in
status)
    if ((present)); then
        echo "patched ($present line(s)): $file"
    else
        echo "not patched: $file"
        exit 1
    fi
    ;;
apply)
    if ((present)); then
        echo "patched already: $file"
        exit 0
    fi
    anchors=$(grep -cx 'import os' "$file" || true)
    [[ $anchors == 1 ]] || die "found $anchors lines 'import os' in $file, expected one; this torch is not known"
    sed "s/^import os\$/$line\\nimport os/" "$file" | replace
    echo "patched: $file"
    ;;
revert)
    if ((!present)); then
        echo "not patched, nothing to revert: $file"
        exit 0
    fi
    grep -vxF "$line" "$file" | replace
    echo "reverted ($present line(s) removed): $file"
    ;;
esac
