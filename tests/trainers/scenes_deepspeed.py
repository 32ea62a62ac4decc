"""DeepSpeed's engines, each stage of ZeRO, with accumulated micro-batches and checkpoints in the loop."""

from tests.trainers.scenes import TrainerKill, TrainerScene


def _scene(stage: int, name: str, *kills: TrainerKill, redone: int = 1) -> TrainerScene:
    return TrainerScene(
        f"deepspeed-{stage}-{name}",
        "deepspeed_digits",
        kills,
        environment=(("ZERO_STAGE", str(stage)),),
        redone=redone,
    )


def _scenes(stage: int, redone: int) -> tuple[TrainerScene, ...]:
    return (
        _scene(
            stage,
            "backward",
            TrainerKill(1, 5, "backward", 2),
            TrainerKill(0, 11, "backward"),
            redone=redone,
        ),
        _scene(
            stage,
            "micro",
            TrainerKill(0, 6, "micro"),
            TrainerKill(1, 12, "micro", 2),
            redone=redone,
        ),
        _scene(
            stage,
            "optimizer",
            TrainerKill(1, 7, "optimizer"),
            TrainerKill(0, 12, "optimizer"),
            redone=redone,
        ),
        _scene(
            stage,
            "evaluation",
            TrainerKill(1, 6, "evaluation", 2),
            TrainerKill(0, 12, "evaluation"),
            redone=redone,
        ),
        _scene(
            stage,
            "save",
            TrainerKill(0, 8, "save"),
            TrainerKill(1, 12, "before save"),
            redone=redone,
        ),
    )


SCENES = (*_scenes(0, 1), *_scenes(1, 6), *_scenes(2, 6), *_scenes(3, 6))
"""From stage 1 on all go back to the newest copies, which are not made after each of such short steps."""
