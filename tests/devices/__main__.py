"""Kill ranks that train on accelerators: `python -m tests.devices --json`, `--only own-ddp`."""

import sys

from tests.devices.scenes import scenes
from tests.playing import main
from tests.trainers.scenes import TrainerStage

if __name__ == "__main__":
    sys.exit(main("devices", __doc__ or "", scenes(), lambda root: TrainerStage(root).play))
