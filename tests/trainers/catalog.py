"""All scenes of all trainers: each trainer's stand in a module of its own."""

from tests.trainers.scenes import TrainerScene
from tests.trainers.scenes_deepspeed import SCENES as DEEPSPEED

SCENES: tuple[TrainerScene, ...] = (*DEEPSPEED,)
