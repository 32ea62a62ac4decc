"""Megatron's core: a GPT over four ranks, killed in the middle of its schedules' and optimizers' common work.

With a distributed optimizer there are no replicas: all ranks go back to copies, which are made at each step here.
The self-check proves nothing where the scaler leaves the third step out, or where parameters are gathered ahead.
"""

from tests.scripts.verdict import Verdict
from tests.trainers.scenes import TrainerKill, TrainerScene

_KILLS = (
    TrainerKill(1, 3, "backward"),
    TrainerKill(0, 5, "reduce"),
    TrainerKill(3, 7, "micro", 2),
    TrainerKill(2, 9, "optimizer"),
)
_LATE = (TrainerKill(1, 4, "optimizer"), TrainerKill(0, 6, "stepped"), TrainerKill(2, 9, "backward", 2))

_OVERFLOWING = (TrainerKill(2, 2, "commit"), TrainerKill(0, 4, "reduce"), TrainerKill(3, 8, "optimizer"))

_WORKS = (TrainerKill(3, 4, "evaluate"), TrainerKill(0, 8, "save"), TrainerKill(2, 12, "save"))

_FEW = (TrainerKill(1, 3, "micro"), TrainerKill(0, 8, "reduce"))


def _scene(
    name: str, on: str, kills: tuple[TrainerKill, ...], fails: str = "", verdict: Verdict = Verdict.PROVEN
) -> TrainerScene:
    environment = (("MEGATRON", on), ("MEGATRON_COPIES", "1"), ("MEGATRON_FAILS", fails))
    return TrainerScene(f"megatron: {name}", "megatron_gpt", kills, ranks=4, environment=environment, verdict=verdict)


SCENES = (
    _scene("tensor parallel under data parallel", "", _KILLS),
    _scene("the same, killed late in the step", "", _LATE),
    _scene("bf16 with main parameters", "bf16", _LATE),
    _scene("fp16 with a loss scaler", "fp16", _OVERFLOWING),
    _scene("distributed optimizer", "distributed", _KILLS),
    _scene("distributed optimizer, bf16, killed late in the step", "distributed,bf16", _LATE),
    _scene(
        "an error before shards are gathered: every process lives, and the step counts", "distributed,bf16", _FEW, "3:5"
    ),
    _scene("distributed optimizer, overlapping", "distributed,overlap", _KILLS, verdict=Verdict.UNPROVEN),
    _scene("evaluations and checkpoints", "works", _WORKS),
    _scene("pipeline under data parallel", "pipeline", _KILLS),
)
