"""Make an environment for each version of torch, run `tests.compat` in it, and write the table of the docs.

Called by `compat.sh`. It uses only the standard library, because each tested version has its own environment.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "torch-versions.md"
RECORDED = ROOT / "tests" / "seams" / "recorded.json"
BEGIN, END = "<!-- table: written by scripts/compat.sh -->\n", "<!-- end of table -->\n"
Line = dict[str, Any]
SET_UP, ALL = NOT_TRIED = ("set-up", "all")
"""Names in place of a promise's, in a line that reports why no promise, or not every promise, was tried."""


def main() -> int:
    """Try the promises with each version; return 0 if every version kept every promise, else 1."""
    known = list(json.loads(RECORDED.read_text()))
    parser = argparse.ArgumentParser(prog="scripts/compat.sh", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of torch (default: {' '.join(known)})")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each promise")
    parser.add_argument("--only", metavar="TEXT", default="", help="only promises with this in their name")
    parser.add_argument("--list", action="store_true", help="say which versions are in the range")
    args = parser.parse_args()
    if args.list:
        print(*known, sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    lines: list[Line] = []
    versions = args.versions or known
    for version, found in zip(versions, try_versions(versions, args.only, as_json=args.json), strict=True):
        lines += found
        if not args.only and not any(line["name"] in NOT_TRIED for line in found):
            write_table(version, found)
    failed = [f"{line['torch']} {line['name']}" for line in lines if not line["ok"]]
    print(json.dumps({"versions": len(versions), "promises": len(lines), "failed": failed}))
    return int(bool(failed) or not lines)


class Environment:
    """Environment for one version of torch, outside the checkout.

    The constructor starts its set-up. `close` removes it, finished or not.
    """

    def __init__(self, version: str, *, ahead: bool) -> None:
        self.version = version
        self._folder = Path(tempfile.mkdtemp(prefix=f"taskd-compat-{version}-"))
        self.checkout = self._folder / "taskd"
        self.env = {**os.environ, "TASKD_TORCH": f"torch=={version}"}
        copy_checkout(self.checkout)
        command = [*(["nice", "-n", "19"] if ahead else []), "bash", "scripts/setup.sh"]
        self._setup = subprocess.Popen(
            command, cwd=self.checkout, env=self.env, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def is_ready(self) -> bool:
        """Wait for the end of the set-up, and return whether it succeeded."""
        return self._setup.wait() == 0

    def close(self) -> None:
        """Kill the set-up if it is still running, and remove the environment."""
        if self._setup.poll() is None:
            os.killpg(self._setup.pid, signal.SIGKILL)
            self._setup.wait()
        if self._folder.exists():
            shutil.rmtree(self._folder)


def try_versions(versions: list[str], only: str, *, as_json: bool) -> Iterator[list[Line]]:
    """Yield the results of the promises for each version.

    The environment of the next version is set up meanwhile, on otherwise idle cores (`nice -n 19`).
    """
    with ExitStack() as stack:
        following = stack.enter_context(closing(Environment(versions[0], ahead=False)))
        for later in (*versions[1:], None):
            present = following
            present.is_ready()
            if later is not None:
                following = stack.enter_context(closing(Environment(later, ahead=True)))
            yield list(try_version(present, only, as_json=as_json))
            present.close()


def try_version(environment: Environment, only: str, *, as_json: bool) -> Iterator[Line]:
    """Yield the result of each promise with this version."""
    missing = {"torch": environment.version, "ok": False, "seconds": 0.0}
    if not environment.is_ready():
        yield _show({**missing, "name": SET_UP, "says": "see above"}, as_json)
        return
    command = [".venv/bin/python", "-m", "tests.compat", *(["--only", only] if only else [])]
    with subprocess.Popen(
        command, cwd=environment.checkout, env=environment.env, stdout=subprocess.PIPE, text=True
    ) as tries:
        assert tries.stdout is not None
        for text in tries.stdout:
            yield _show(json.loads(text), as_json)
    if tries.returncode not in (0, 1):
        says = f"tests.compat ended with status {tries.returncode}"
        yield _show({**missing, "name": ALL, "says": says}, as_json)


def copy_checkout(copy: Path) -> None:
    """Copy the files that git tracks, and the new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def write_table(version: str, lines: list[Line]) -> None:
    """Write the row of this version into the page; the rows of other versions stay."""
    before, rest = PAGE.read_text().split(BEGIN)
    rows, after = rest.split(END)
    kept = {row.split("|")[1].strip().partition(" ")[0]: row for row in rows.splitlines() if row.startswith("| 2")}
    names = [line["name"] for line in lines]
    told = [line["says"].replace("|", "/") if line["ok"] else "**not kept**" for line in lines]
    kept[version] = f"| {version} (Python {'.'.join(platform.python_version_tuple()[:2])}) | {' | '.join(told)} |"
    ordered = sorted(kept.items(), key=lambda row: [int(number) for number in row[0].split(".")])
    head = f"| torch | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}\n"
    PAGE.write_text(before + BEGIN + head + "".join(f"{row}\n" for _, row in ordered) + END + after)


def _show(line: Line, as_json: bool) -> Line:
    state = "ok  " if line["ok"] else "FAIL"
    text = f"{state} {line['torch']:<14} {line['name']:<26} {line['seconds']:6.1f} s  {line['says']}"
    print(json.dumps(line) if as_json else text, flush=True)
    return line


if __name__ == "__main__":
    sys.exit(main())
