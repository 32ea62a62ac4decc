"""All scenes of all trainers: each trainer's stand in a module of its own."""

from tests.trainers.scenes import TrainerScene
from tests.trainers.scenes_hf import SCENES as HF

SCENES: tuple[TrainerScene, ...] = (*HF,)
