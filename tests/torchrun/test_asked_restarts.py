"""The job's budget as torchrun received it: 0 and no value are distinguished, in every spelling."""

import sys

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler
from torch.distributed.run import config_from_args, parse_args

from taskd.adaptors.torchrun.given import max_restarts
from taskd.core.recovery.budget import DEFAULT_MAX_RESTARTS

PARAMETERS = RendezvousParameters("static", "127.0.0.1:1", "job", 1, 1, rank=0)
"""Parameters without a meeting: a static rendezvous opens nothing before its first round."""


def asked(monkeypatch: pytest.MonkeyPatch, words: str, variable: str | None) -> int:
    """Return the budget of a job that is started with these words, as the agent reads it."""
    if variable is not None:
        monkeypatch.setenv("PET_MAX_RESTARTS", variable)
    monkeypatch.setattr(sys, "argv", ["torchrun", *words.split()])
    config, command, arguments = config_from_args(parse_args(words.split()))
    return max_restarts(
        WorkerSpec(
            role="default",
            local_world_size=config.nproc_per_node,
            rdzv_handler=create_rdzv_handler(PARAMETERS),
            entrypoint=command,
            args=tuple(arguments),
            max_restarts=config.max_restarts,
        )
    )


@pytest.mark.parametrize(
    ("words", "variable", "budget"),
    [
        ("train.py", None, DEFAULT_MAX_RESTARTS),
        ("--max_restarts=0 train.py", None, 0),
        ("--max-restarts 0 train.py", None, 0),
        ("--max_r 0 train.py", None, 0),
        ("--max_restarts 5 train.py", None, 5),
        ("train.py", "0", 0),
        ("train.py", "4", 4),
        ("--max_restarts=0 train.py", "4", 0),
        ("train.py --max_restarts 0", None, DEFAULT_MAX_RESTARTS),
        ("--nproc_per_node 1 train.py --max-restarts=7", None, DEFAULT_MAX_RESTARTS),
        ("--max_restarts 2 train.py --max_restarts 0", None, 2),
        ("-m train --max_restarts 0", None, DEFAULT_MAX_RESTARTS),
    ],
)
def test_what_was_asked_for_counts(
    monkeypatch: pytest.MonkeyPatch, words: str, variable: str | None, budget: int
) -> None:
    monkeypatch.delenv("PET_MAX_RESTARTS", raising=False)
    assert asked(monkeypatch, words, variable) == budget
