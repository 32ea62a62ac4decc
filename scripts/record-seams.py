"""Record in tests/seams/recorded.json how taskd's seams fit versions of torch, without installing them.

Only the needed files of each wheel are read from the package index, by requests for parts of the wheel. One version
takes some 200 MB and half a minute, most of it for the two compiled libraries. Without a version on the command line,
the versions that are already recorded are recorded again. That is needed after a change of the table of seams.

Run it with the project's own Python, after an installation of remotezip:

    .venv/bin/pip install remotezip
    .venv/bin/python scripts/record-seams.py [VERSION …]
"""

import argparse
import json
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from taskd.adaptors.seams.seam import TorchName  # noqa: E402
from tests.seams import recording  # noqa: E402
from tests.seams.sources import Sources  # noqa: E402

INDEX = "https://pypi.org/simple/torch/"
WHEEL = "-cp311-cp311-"
PYTHON_LIBRARY = "libtorch_python.so"
CHUNK_BYTES = 1 << 22


def main() -> int:
    """Record each version and print the names that it lacks. Return 0 if every version could be read, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    records = recording.read() if recording.FILE.is_file() else {}
    wanted = parser.parse_args().versions or list(records)
    try:
        remote: Any = import_module("remotezip")
    except ImportError:
        print(f"remotezip is missing: {sys.executable} -m pip install remotezip", file=sys.stderr)
        return 1
    files = _files()
    for version in wanted:
        url = next((url for name, url in files.items() if name.startswith(f"torch-{version}{WHEEL}")), None)
        if url is None:
            print(f"torch {version}: found no wheel torch-{version}{WHEEL}…x86_64.whl in {INDEX}", file=sys.stderr)
            return 1
        with remote.RemoteZip(url) as wheel:
            records[version] = recording.record(_look(wheel))
        recording.write(records)
        missing = [name for name, there in records[version].items() if isinstance(there, str)]
        print(f"torch {version}: {len(records[version])} names looked up, not there: {', '.join(missing) or 'none'}")
    return 0


def _files() -> dict[str, str]:
    request = urllib.request.Request(INDEX, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        listed = json.load(answer)["files"]
    return {one["filename"]: one["url"] for one in listed if one["filename"].endswith("x86_64.whl")}


def _look(wheel: zipfile.ZipFile) -> Callable[[str, str], "TorchName | str"]:
    names = frozenset(wheel.namelist())
    sources = Sources(lambda path: wheel.read(path).decode() if path in names else None)
    asked = {seam.attribute for seam in recording.all_seams() if seam.module.endswith(".so")}
    native = {name for seam in recording.all_seams() if seam.module.startswith("torch._C") for name in seam.names}

    @cache
    def exported(library: str) -> frozenset[str]:
        return frozenset(_spelt(wheel, f"torch/lib/{library}", native if library == PYTHON_LIBRARY else asked))

    def look(module: str, attribute: str) -> TorchName | str:
        if module.endswith(".so"):
            return TorchName() if attribute in exported(module) else "no such symbol"
        there = sources.look(module, attribute)
        if isinstance(there, str) or not module.startswith("torch._C") or attribute:
            return there
        # torch's stubs do not list all functions, so the module's own functions are searched in the library.
        return TorchName(there.takes, there.sets, (*there.has, *exported(PYTHON_LIBRARY)))

    return look


def _spelt(wheel: zipfile.ZipFile, path: str, names: set[str]) -> Iterator[str]:
    """Yield the names that a library's string tables have as a whole word."""
    left = {name: b"\0" + name.encode() + b"\0" for name in names}
    longest = max(map(len, left.values()))
    tail = b""
    with wheel.open(path) as library:
        while left and (chunk := library.read(CHUNK_BYTES)):
            text = tail + chunk
            found = [name for name, word in left.items() if word in text]
            for name in found:
                del left[name]
            yield from found
            tail = text[-longest:]


if __name__ == "__main__":
    raise SystemExit(main())
