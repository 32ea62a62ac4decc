"""torchrun where the packages of the folder PLUGINS are installed too."""

import os
import sys

from torch.distributed import run

sys.path.insert(0, os.environ["PLUGINS"])
run.main()
