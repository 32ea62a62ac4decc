"""Play the ladder: `python -m tests.ladder --json`, or some scenes by a part of their names: `--only drain`."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.ladder.job import undisturbed
from tests.ladder.scenarios import SCENES, Scene, line, perform
from tests.nodes_space import NodesUnavailableError


def main() -> int:
    """0 if every scene went as it should."""
    parser = argparse.ArgumentParser(prog="scripts/ladder.sh", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each scene, and nothing else")
    parser.add_argument("--only", metavar="TEXT", default="", help="only scenes with this in their name")
    parser.add_argument("--keep", action="store_true", help="keep the folders of scenes that went well, too")
    args = parser.parse_args()
    chosen = [scene for scene in SCENES if args.only in scene.name]
    if not chosen:
        parser.error(f"no scene has {args.only!r} in its name; there are: {', '.join(s.name for s in SCENES)}")
    root = Path(tempfile.mkdtemp(prefix="taskd-ladder-"))
    wanted = undisturbed(root / "undisturbed")
    try:
        results = [play(scene, root, wanted, as_json=args.json) for scene in chosen]
    except NodesUnavailableError as error:
        print(f"ladder: nodes cannot be made here: {error}", file=sys.stderr)
        return 1
    good = all(results)
    if good and not args.keep:
        shutil.rmtree(root)
    else:
        print(f"ladder: folders are in {root}", file=sys.stderr)
    return 0 if good else 1


def play(scene: Scene, root: Path, wanted: str, *, as_json: bool) -> bool:
    """One scene on nodes of its own; whether all was as it should be."""
    folder = root / f"{SCENES.index(scene):02d}"  # short: sockets and run directories lie below
    folder.mkdir()
    begun_s = time.monotonic()
    job, wrong = perform(scene, folder, wanted)
    found = line(scene, job, wrong, time.monotonic() - begun_s)
    text = f"{'ok  ' if not wrong else 'FAIL'} {scene.name}: {', '.join(found['strategies']) or 'no recovery'}"
    print(json.dumps(found) if as_json else f"{text} {found['total_ms']} ms {'; '.join(wrong)}", flush=True)
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
