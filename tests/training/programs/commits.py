"""Commits steps until it is killed; the step determines its numbers: `commits.py FILE`."""

import random
import sys
from pathlib import Path

import torch

from tests.training.test_pulse import make

state = make(Path(sys.argv[1]))
torch.set_num_threads(1)
while True:
    torch.manual_seed(state.step)
    random.seed(state.step)
    state.commit()
