"""Kill ranks that train with popular libraries: `python -m tests.trainers --json`, `--only lightning`."""

import sys

from tests.playing import main
from tests.trainers.catalog import SCENES
from tests.trainers.scenes import TrainerStage

if __name__ == "__main__":
    sys.exit(main("trainers", __doc__ or "", SCENES, lambda root: TrainerStage(root).play))
