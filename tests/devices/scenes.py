"""Trainings on accelerators whose ranks are killed at inconvenient moments, and the judgement of them.

Rules:

1. They are judged as scenes of trainers are (`tests.trainers.scenes`): the reference is the plain program under stock
   torchrun.
2. On a machine with fewer accelerators than ranks, several ranks share one. Each is then a node of its own, for NCCL
   too (`tests.trainers.programs.place`).
"""

import os
from dataclasses import replace
from pathlib import Path

import torch

from tests.trainers import scenes_accelerate, scenes_deepspeed, scenes_hf, scenes_lightning, scenes_megatron
from tests.trainers.scenes import TrainerKill, TrainerScene

PROGRAMS = Path(__file__).with_name("programs")
_ON = (
    ("SCENE_DEVICE", os.environ.get("SCENE_DEVICE", "cuda")),
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ("NCCL_SOCKET_IFNAME", "lo"),
)
_KILLS = (
    TrainerKill(1, 5, "forward"),
    TrainerKill(0, 9, "backward"),
    TrainerKill(1, 13, "stepped"),
    TrainerKill(0, 17, "committed"),
    TrainerKill(1, 21, "reduced"),
)
_HANGS = (TrainerKill(1, 25, "~reduced"), TrainerKill(0, 28, "^backward"))
_HANG_LIMITS = (("TASKD_HANG_FIRST_S", "10"), ("TASKD_HANG_UNPROVEN_S", "4"))
_LIMIT_S = 100.0
_OF_TRAINERS = (scenes_accelerate, scenes_hf, scenes_lightning, scenes_deepspeed, scenes_megatron)
_NAMES = (
    "hf-steps",
    "hf-steps-between",
    "hf-fsdp2",
    "lightning-ddp",
    "deepspeed-0-backward",
    "deepspeed-2-optimizer",
    "deepspeed-3-backward",
    "megatron: tensor parallel under data parallel",
    "megatron: distributed optimizer",
    "megatron: pipeline under data parallel",
)


def _own(case: str, kills: tuple[TrainerKill, ...] = _KILLS, *, redone: int = 1) -> TrainerScene:
    environment = (*_ON, ("DEVICE_CASE", case))
    return TrainerScene(f"own-{case}", "loop", kills, environment=environment, redone=redone, folder=PROGRAMS)


def _hanging() -> TrainerScene:
    scene = _own("ddp", _HANGS)
    return replace(scene, name="own-hang", environment=(*scene.environment, *_HANG_LIMITS))


def scenes() -> tuple[TrainerScene, ...]:
    """Return all scenes for the accelerators of this machine."""
    of_trainers = [
        scene
        for module in _OF_TRAINERS
        for scene in module.SCENES
        if scene.name in _NAMES or module is scenes_accelerate
    ]
    found = [
        _own("ddp"),
        _own("amp"),
        _own("gloo"),
        _own("fsdp2", redone=3),
        replace(_own("hsdp"), ranks=4),
        _own("compile"),
        _own("graph"),
        _own("tensor", redone=3),
        _own("pipeline", redone=3),
        _hanging(),
        *(replace(scene, environment=(*scene.environment, *_ON)) for scene in of_trainers),
    ]
    short = torch.cuda.device_count() < max(scene.ranks for scene in found)
    return tuple(replace(scene, nodes=scene.ranks if short else 1, limit_s=_LIMIT_S) for scene in found)
