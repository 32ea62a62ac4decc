"""Scenes of Hugging Face's Trainer, and of TRL's SFTTrainer."""

from tests.trainers.scenes import TrainerKill, TrainerScene

SCENES = (
    TrainerScene(
        "hf-steps",
        "hf",
        (TrainerKill(1, 5, "backward", 2), TrainerKill(0, 10, "micro")),
        environment=(("HF_CASE", "steps"),),
    ),
    TrainerScene(
        "hf-steps-behind",
        "hf",
        (
            TrainerKill(0, 4, "evaluation", 2),
            TrainerKill(1, 8, "evaluation"),
            TrainerKill(0, 12, "checkpoint"),
            TrainerKill(1, 16, "checkpoint"),
            TrainerKill(0, 18, "logged"),
        ),
        environment=(("HF_CASE", "steps"),),
    ),
    TrainerScene(
        "hf-steps-between",
        "hf",
        (
            TrainerKill(1, 1, "optimizer"),
            TrainerKill(0, 7, "stepped"),
            TrainerKill(1, 9, "backward"),
            TrainerKill(0, 13, "optimizer"),
        ),
        environment=(("HF_CASE", "steps"),),
    ),
    TrainerScene(
        "hf-epochs",
        "hf",
        (
            TrainerKill(1, 13, "epoch"),
            TrainerKill(0, 13, "evaluation", 3),
            TrainerKill(1, 14, "backward"),
            TrainerKill(0, 26, "checkpoint"),
            TrainerKill(1, 39, "logged"),
        ),
        environment=(("HF_CASE", "epochs"),),
    ),
    TrainerScene(
        "hf-stream",
        "hf",
        (TrainerKill(1, 5, "backward"), TrainerKill(0, 8, "evaluation"), TrainerKill(0, 10, "micro")),
        environment=(("HF_CASE", "stream"),),
    ),
    TrainerScene(
        "hf-workers",
        "hf",
        (TrainerKill(1, 5, "backward"), TrainerKill(0, 15, "optimizer")),
        environment=(("HF_CASE", "workers"),),
    ),
    TrainerScene(
        "hf-fsdp2",
        "hf",
        (TrainerKill(1, 5, "backward"), TrainerKill(0, 12, "evaluation")),
        environment=(("HF_CASE", "fsdp2"),),
        redone=3,
    ),
    TrainerScene(
        "hf-sft",
        "hf_sft",
        (
            TrainerKill(1, 4, "backward"),
            TrainerKill(0, 5, "evaluation", 2),
            TrainerKill(1, 7, "micro"),
            TrainerKill(0, 10, "checkpoint"),
        ),
    ),
    TrainerScene(
        "hf-resume",
        "hf",
        (
            TrainerKill(1, 4, "backward"),
            TrainerKill(0, 6, "micro"),
            TrainerKill(1, 8, "evaluation"),
            TrainerKill(0, 9, "optimizer"),
        ),
        environment=(("HF_CASE", "resume"),),
    ),
)
