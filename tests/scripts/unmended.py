"""A mutation of a script's processes: taskd without what makes certain shapes of scripts go on exactly."""

from collections.abc import Iterator
from typing import Any

import torch

from taskd.adaptors.training.copies import backups
from taskd.adaptors.training.data.epochs import Epochs
from taskd.adaptors.training.data.loop_names import LoopNames
from taskd.adaptors.training.data.pass_numbers import PassNumbers
from taskd.adaptors.training.data.persistent import PersistentIterators
from taskd.adaptors.training.data.sampler_epochs import SamplerEpochs
from taskd.adaptors.training.inflight.in_flight import InFlight
from taskd.adaptors.training.parts.modes import Mode
from taskd.adaptors.training.proof import reading
from taskd.adaptors.training.proof.looks import EarlyLooks
from taskd.adaptors.training.script.behind import BehindCommit


def take_mendings_out() -> None:
    """Disable each mechanism that one of the scripts in `__main__._MENDED` needs."""

    def no_layouts(*_: Any) -> bool:
        return True

    def no_statistics(*_: Any) -> bool:
        return False

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def outermost(mode: Mode) -> Iterator[torch.nn.Module]:
        yield mode._module

    for owner, name, instead in (
        (backups, "record_layouts", no_layouts),
        (backups, "has_statistics", no_statistics),
        (EarlyLooks, "_keep_or_refuse", nothing),
        (BehindCommit, "note", nothing),
        (BehindCommit, "tell_later", nothing),
        (reading, "count_on", nothing),
        (LoopNames, "keep", nothing),
        (PassNumbers, "_put", nothing),
        (PersistentIterators, "unpack", nothing),
        (SamplerEpochs, "_set", nothing),
        (Epochs, "go_on", nothing),
        (Mode, "_roots", outermost),
        (InFlight, "take", nothing),
    ):
        if not hasattr(owner, name):
            raise AttributeError(f"{owner} has no {name} any more: the mutation does nothing")
        setattr(owner, name, instead)
