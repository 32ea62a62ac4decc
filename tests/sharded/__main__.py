"""Kill ranks of sharded models at inconvenient moments: `python -m tests.sharded --json`, or `--only HSDP`."""

import sys

from tests.playing import main
from tests.sharded.scenes import CORRUPTED, CORRUPTED_SHARD, MUTATED, REFUSED, SCENES, SPLIT, Stage

if __name__ == "__main__":
    sys.exit(
        main(
            "sharded",
            __doc__ or "",
            (*SCENES, *SPLIT, CORRUPTED, CORRUPTED_SHARD, *REFUSED, *MUTATED),
            lambda root: Stage(root).play,
            counted="scenes",
        )
    )
