"""torchtitan."""

from tests.trainers.scenes import TrainerKill, TrainerScene


def _case(name: str) -> tuple[tuple[str, str], ...]:
    """Return the variables. torchtitan's import needs the GPU's stand-ins, which a warm process does not have."""
    return (("TITAN_CASE", name),)


SCENES = (
    TrainerScene(
        "titan: FSDP2 over both ranks",
        "titan",
        (TrainerKill(1, 4, "backward", 2), TrainerKill(0, 7, "part", 2), TrainerKill(1, 10, "checkpoint")),
        environment=_case("fsdp"),
        redone=4,
    ),
    TrainerScene(
        "titan: tensor parallel",
        "titan",
        (TrainerKill(0, 5, "backward"), TrainerKill(1, 9, "part")),
        environment=_case("tp"),
        redone=4,
    ),
    TrainerScene(
        "titan: a pipeline",
        "titan",
        (TrainerKill(1, 5, "part"), TrainerKill(0, 10, "checkpoint")),
        environment=_case("pp"),
        redone=4,
    ),
    TrainerScene(
        "titan: a loop of one's own",
        "titan_loop",
        (TrainerKill(1, 4, "backward"), TrainerKill(0, 7, "stepped"), TrainerKill(1, 10, "forward")),
        redone=4,
    ),
)
