"""All scenes of all trainers: each trainer's stand in a module of its own."""

from tests.trainers import scenes_ray
from tests.trainers.scenes import TrainerScene

SCENES: tuple[TrainerScene, ...] = (*scenes_ray.SCENES,)
