"""Kill ranks that train on accelerators: `python -m tests.devices --json`, `--only own-ddp`.

With SCENE_DEVICE=cpu the loops of its own are played on a CPU, over gloo.
"""

import os
import sys

import torch

from tests.devices.scenes import scenes
from tests.playing import main
from tests.trainers.scenes import TrainerStage

if __name__ == "__main__":
    if not (torch.cuda.is_available() or os.environ.get("SCENE_DEVICE") == "cpu"):
        sys.exit(
            f"devices: torch {torch.__version__} finds no accelerator here, and these trainings need one. "
            "Where there is one, install a torch for its driver (TASKD_TORCH of scripts/setup.sh)"
        )
    sys.exit(main("devices", __doc__ or "", scenes(), lambda root: TrainerStage(root).play))
