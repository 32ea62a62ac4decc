"""Trainings with PyTorch Lightning, and their kills."""

from tests.trainers.scenes import TrainerKill, TrainerScene

SCENES = (
    TrainerScene(  # an epoch has 6 steps of 2 batches each; evaluations after steps 3 and 6
        "lightning-ddp",
        "lightning_digits",
        (
            TrainerKill(1, 3, "backward", 2),
            TrainerKill(0, 5, "forward", 2),
            TrainerKill(0, 6, "validation", 3),
            TrainerKill(1, 8, "checkpoint", 1),
            TrainerKill(0, 9, "checkpoint written", 1),
            TrainerKill(1, 12, "batch end", 1),
        ),
    ),
    TrainerScene(
        "lightning-manual",
        "lightning_gan",
        (
            TrainerKill(1, 1, "critic"),
            TrainerKill(0, 4, "critic stepped"),
            TrainerKill(1, 10, "validation"),
            TrainerKill(0, 15, "generator"),
        ),
    ),
    TrainerScene(
        "lightning-fsdp2",
        "lightning_fsdp2",
        (
            TrainerKill(1, 8, "backward"),
            TrainerKill(0, 12, "validation"),
            TrainerKill(0, 19, "forward"),
        ),
        redone=24,
    ),
    TrainerScene(
        "lightning-workers",
        "lightning_digits",
        (
            TrainerKill(0, 2, "backward", 1),
            TrainerKill(1, 6, "epoch end"),
            TrainerKill(0, 9, "validation", 1),
            TrainerKill(0, 10, "backward", 2),
        ),
        environment=(("SCENE_WORKERS", "2"), ("SCENE_PRECISION", "bf16-mixed"), ("SCENE_SCHEDULER", "plateau")),
    ),
    TrainerScene(
        "lightning-pytorch-lightning",
        "lightning_digits",
        (
            TrainerKill(1, 1, "forward", 1),
            TrainerKill(0, 6, "epoch end"),
        ),
        environment=(("SCENE_PACKAGE", "pytorch_lightning"), ("SCENE_SCHEDULER", "epoch")),
    ),
    TrainerScene(  # an epoch has 5 steps; evaluations after steps 10 and 20; the last step is 22
        "lightning-reload",
        "lightning_reload",
        (
            TrainerKill(1, 7, "backward"),
            TrainerKill(0, 10, "validation", 2),
            TrainerKill(1, 10, "epoch start"),
            TrainerKill(0, 18, "forward"),
            TrainerKill(1, 22, "train end"),
        ),
    ),
)
