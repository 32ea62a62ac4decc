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
            TrainerKill(1, 4, "backward", 2),
            TrainerKill(0, 7, "backward"),
            redone=redone,
        ),
        _scene(
            stage,
            "micro",
            TrainerKill(0, 4, "micro"),
            TrainerKill(1, 6, "micro", 2),
            redone=redone,
        ),
        _scene(
            stage,
            "optimizer",
            TrainerKill(1, 5, "optimizer"),
            TrainerKill(0, 8, "optimizer"),
            redone=redone,
        ),
        _scene(
            stage,
            "evaluation",
            TrainerKill(1, 3, "evaluation", 2),
            TrainerKill(0, 6, "evaluation"),
            redone=redone,
        ),
        _scene(
            stage,
            "save",
            TrainerKill(0, 4, "save"),
            TrainerKill(1, 8, "before save"),
            redone=redone,
        ),
    )


SCENES = (*_scenes(0, 1), *_scenes(1, 3), *_scenes(2, 3), *_scenes(3, 3))
