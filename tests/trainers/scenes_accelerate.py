"""accelerate: users' own loops."""

from tests.trainers.scenes import TrainerKill, TrainerScene

SCENES = (
    TrainerScene(
        "accelerate: backward, between parts, evaluation, checkpoint",
        "accelerate_loop",
        (
            TrainerKill(1, 2, "backward", 2),
            TrainerKill(0, 4, "between parts"),
            TrainerKill(1, 6, "evaluation", 2),
            TrainerKill(0, 12, "checkpoint"),
        ),
    ),
    TrainerScene(
        "accelerate: shuffling that ranks agree on",
        "accelerate_loop",
        (TrainerKill(0, 3, "between parts"), TrainerKill(1, 6, "backward"), TrainerKill(0, 6, "evaluation")),
        environment=(("ACCELERATE_CASE", "sampler"),),
    ),
    TrainerScene(
        "accelerate: FSDP2 over both ranks",
        "accelerate_loop",
        (TrainerKill(1, 5, "backward"), TrainerKill(0, 9, "between parts")),
        environment=(("ACCELERATE_CASE", "fsdp2"),),
        redone=4,
    ),
)
