"""All scenes of all trainers: each trainer's stand in a module of its own."""

from tests.trainers.scenes import TrainerScene
from tests.trainers.scenes_megatron import SCENES as MEGATRON

SCENES: tuple[TrainerScene, ...] = (*MEGATRON,)
