"""All scenes of all trainers: each trainer's stand in a module of its own."""

from tests.trainers import scenes_accelerate, scenes_hf, scenes_megatron
from tests.trainers.scenes import TrainerScene

SCENES: tuple[TrainerScene, ...] = (*scenes_accelerate.SCENES, *scenes_hf.SCENES, *scenes_megatron.SCENES)
"""Programs that train with a library as its documentation teaches, with taskd and without. See `scenes`."""
