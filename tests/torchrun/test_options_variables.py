"""torchrun's options as variables, PET_ and the option's name: each job the same with and without taskd."""

import os
import sys
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from tests.torchrun.conftest import Play
from tests.torchrun.test_options_ends import THE_END, events
from tests.torchrun.test_options_launch import COLD, PROCESSES
from tests.torchrun.test_options_nodes import MANAGED
from tests.torchrun.twins import USUAL, Launch

CASES: dict[str, Launch] = {
    "where and how": Launch(
        (("{observer}",),),
        {
            "PET_NPROC_PER_NODE": "2",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "localhost:{port}",
            "PET_RDZV_ID": "petrified",
            "PET_RDZV_CONF": "join_timeout=20,is_host=1",
            "PET_LOCAL_ADDR": "127.0.0.1",
            "PET_ROLE": "trainer",
            "PET_VIRTUAL_LOCAL_RANK": "1",
            "CUDA_VISIBLE_DEVICES": "3,5",
        },
    ),
    "logs": Launch(
        (("{observer}",),),
        {
            "PET_NPROC_PER_NODE": "2",
            "PET_LOG_DIR": "{folder}/logs",
            "PET_TEE": "1",
            "PET_REDIRECTS": "0:2",
            "PET_LOCAL_RANKS_FILTER": "1",
            "PET_DUPLICATE_STDOUT_FILTERS": "rank 1,nothing",
            "PET_DUPLICATE_STDERR_FILTERS": "last line",
        },
    ),
    "module": Launch(
        (("tests.torchrun.programs.observer", "end", "word"),),
        {"PET_MODULE": "1", "PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "4"},
    ),
    "no Python": Launch(((sys.executable, "-I", "{observer}"),), {"PET_NO_PYTHON": "1"}, ranks=1),
    "function": Launch((("{observer}",),), {"PET_RUN_PATH": "1", "PET_START_METHOD": "fork"}, ranks=1),
}
SIGNAL = Launch(
    (("{observer}", "signal", "SIGUSR1", "stay"),),
    {"PET_SIGNALS_TO_HANDLE": "SIGUSR1,SIGTERM", "PET_SHUTDOWN_TIMEOUT": "1"},
    ranks=1,
)
EVENTS = Launch((("{observer}",),), {"PET_EVENT_LOG_HANDLER": "console"}, ranks=1)
NODES = Launch(
    tuple((f"PET_NODE_RANK={rank}", "{observer}", "meet") for rank in range(2)),
    {**MANAGED, "PET_NNODES": "2", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "{port}"},
    manager=True,
)
PLAYED = (*CASES.values(), SIGNAL, EVENTS, NODES)


@pytest.mark.parametrize("name", CASES)
def test_ranks_see_the_same(play: Play, name: str) -> None:
    pair = play(CASES[name])
    pair.check(COLD, "the ranks run a function, expected a script: taskd leaves this job to torchrun")
    assert pair.stock.statuses == [0], pair.stock.text
    for rank in pair.stock.ranks.values():
        assert rank["process"] == (PROCESSES["fork"] if name == "function" else "_MainProcess")


def test_a_signal(play: Play) -> None:
    pair = play(SIGNAL)
    pair.check(THE_END)
    assert pair.stock.statuses == [1], pair.stock.text
    assert max(pair.stock.seconds, pair.taskd.seconds) < 20


def test_events(play: Play) -> None:
    pair = play(EVENTS)
    assert events(pair.taskd) == events(pair.stock)
    assert len(events(pair.stock)) >= 2


def test_two_nodes(play: Play) -> None:
    pair = play(NODES)
    pair.check_ranks()
    assert pair.stock.statuses == [0, 0], pair.stock.text
    assert sorted(pair.stock.ranks) == ["seen-0-0-of-2", "seen-1-0-of-2"]


def test_every_variable_is_played_with_another_value_than_the_options_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    usual = defaults()
    played = set()
    for launch in PLAYED:
        own = dict(word.split("=", 1) for node in launch.nodes for word in node if word.startswith("PET_"))
        with monkeypatch.context() as patch:
            for name, value in ({**USUAL, **launch.env} | own).items():
                patch.setenv(name, value or "")
            played |= {option for option, value in defaults().items() if value != usual[option]}
    assert played == usual.keys() - {"logs_specs", "numa_binding", "training_script", "training_script_args"}, (
        "no others"
    )


def defaults() -> dict[str, Any]:
    """Return the default of every option, as torchrun takes it from its variables."""
    return {action.dest: action.default for action in get_args_parser()._actions if action.dest != "help"}
