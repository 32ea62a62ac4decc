"""All scenes of all trainers. Each trainer's are in a module of its own."""

from tests.trainers import (
    scenes_accelerate,
    scenes_deepspeed,
    scenes_hf,
    scenes_lightning,
    scenes_megatron,
    scenes_ray,
    scenes_titan,
)
from tests.trainers.scenes import TrainerScene

SCENES: tuple[TrainerScene, ...] = (
    *scenes_accelerate.SCENES,
    *scenes_deepspeed.SCENES,
    *scenes_hf.SCENES,
    *scenes_lightning.SCENES,
    *scenes_megatron.SCENES,
    *scenes_ray.SCENES,
    *scenes_titan.SCENES,
)
