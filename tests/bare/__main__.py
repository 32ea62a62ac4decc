"""Play jobs and programs in environments other than ours: `python -m tests.bare --json`, or some: `--only seccomp`."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bare.gates import GATES
from tests.bare.jobs_bare import JOBS_BARE
from tests.bare.jobs_contained import JOBS_CONTAINED
from tests.bare.stage import Environment, Stage, UnavailableError
from tests.bare.wheels import WHEELS
from tests.faults.cgroups import CgroupUnavailableError
from tests.launch import end_as_by_an_error

ENVIRONMENTS = (*WHEELS, *GATES, *JOBS_BARE, *JOBS_CONTAINED)
_AT_ONCE = 2
_SHOWN = 300
"""Largest length of a printed defect, in characters."""


def main() -> int:
    """Play the environments. Return 0 if taskd is at least as good as stock torchrun in each of them."""
    parser = argparse.ArgumentParser(prog="scripts/bare.sh", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each environment, and one for all")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="this environment, or all with NAME in their names"
    )
    parser.add_argument("--list", action="store_true", help="name the environments and what each is")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all environments")
    parser.add_argument(
        "--at-once", metavar="N", type=int, default=_AT_ONCE, help=f"play N at once (default {_AT_ONCE})"
    )
    parser.add_argument(
        "--with", metavar="PACKAGE", dest="extra", action="append", default=[],
        help="install PACKAGE of .venv too, such as numpy, to tell one cause from another",
    )  # fmt: skip
    args = parser.parse_args()
    chosen = choose(args.only or [""])
    if not chosen:
        parser.error(
            f"no environment has {args.only!r} in its name; there are: {', '.join(one.name for one in ENVIRONMENTS)}"
        )
    if args.list:
        for one in chosen:
            print(f"{one.name} ({one.item}): {one.about}")
        return 0
    if os.geteuid() != 0:
        parser.error("it needs root: namespaces, mounts, other users")
    end_as_by_an_error()
    root = Path(tempfile.mkdtemp(prefix="taskd-bare-", dir="/var/tmp"))  # not /tmp, over which an environment mounts
    root.chmod(0o755)
    failed = play_all(chosen, Stage(root, args.extra), at_once=args.at_once, as_json=args.json)
    last = {"environments": len(chosen), "ok": len(chosen) - len(failed), "failed": failed}
    if failed or args.keep:
        _shrink(root)
        print(f"bare: folders are in {root}", file=sys.stderr)
    else:
        shutil.rmtree(root)
    print(json.dumps(last) if args.json else f"bare: {last['ok']} of {last['environments']} are well", flush=True)
    return 1 if failed else 0


def choose(names: list[str]) -> list[Environment]:
    """Return the environments of these names. A name without an exact match selects all that contain it."""
    exact = {one.name for one in ENVIRONMENTS}
    return [one for one in ENVIRONMENTS if any(one.name == n or (n not in exact and n in one.name) for n in names)]


def play_all(chosen: list[Environment], stage: Stage, *, at_once: int, as_json: bool) -> list[str]:
    """Play environments, some at once, and print them in order. Return the names of those that failed."""
    failed = []
    with ThreadPoolExecutor(at_once) as pool:
        plays = [pool.submit(_play, one, stage, stage.root / f"{number:02d}") for number, one in enumerate(chosen)]
        try:
            for one, play in zip(chosen, plays, strict=True):
                found = play.result()
                if found["wrong"]:
                    failed.append(one.name)
                shown = f"{'FAIL' if found['wrong'] else 'ok  '} {one.name}: {'; '.join(found['wrong']) or one.about}"
                print(json.dumps(found) if as_json else shown, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def _play(one: Environment, stage: Stage, folder: Path) -> dict[str, Any]:
    """Play an environment. If this machine cannot make it, it has failed."""
    folder.mkdir()
    begun_s = time.monotonic()
    try:
        wrong, facts = one.trial.play(stage, folder)
    except (UnavailableError, CgroupUnavailableError) as error:
        wrong, facts = [f"this machine cannot make it: {error}"], {}
    except Exception as error:  # noqa: BLE001 - one that breaks must not hide the others
        (folder / "broken.txt").write_text(traceback.format_exc())
        wrong, facts = [f"the player broke: {error!r}"], {}
    wrong = [text[:_SHOWN] for text in wrong]
    seconds = round(time.monotonic() - begun_s, 1)
    return {
        "name": one.name,
        "item": one.item,
        "ok": not wrong,
        "wrong": wrong,
        **facts,
        "seconds": seconds,
        "folder": folder.name,
    }


def _shrink(root: Path) -> None:
    """Keep outputs and records, and delete the installations."""
    for path in root.iterdir():
        if not path.name.isdigit():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    sys.exit(main())
