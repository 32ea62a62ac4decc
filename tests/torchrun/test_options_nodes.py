"""torchrun's options on several nodes: a fixed number of them with a manager, and MIN:MAX with the present ones."""

import pytest

from tests.torchrun.conftest import Play
from tests.torchrun.twins import PROGRAMS, Launch

DYNAMIC = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=nodes", "--local-addr=127.0.0.1")
FILE = ("--rdzv-backend=c10d", "--rdzv-endpoint={folder}-store", "--local-addr=127.0.0.1")
STATIC = ("--master-addr=localhost", "--master-port={port}")
MANAGED = {"TASKD_MANAGER": "127.0.0.1:{manager}"}

FIXED: dict[str, Launch] = {
    "static": Launch(
        tuple(("--nnodes=2", f"--node-rank={rank}", *STATIC, "{observer}", "meet") for rank in range(2)),
        MANAGED,
        manager=True,
    ),
    "dynamic": Launch((("--nnodes=2", *DYNAMIC, "{observer}", "meet"),) * 2, MANAGED, manager=True),
    "dynamic, over a file": Launch(
        (("--nnodes=2", *FILE, "--rdzv-conf=store_type=file", "--rdzv-id=nodes", "{observer}", "meet"),) * 2,
        MANAGED,
        manager=True,
    ),
}
NOBODY = Launch((("--nnodes=2", *DYNAMIC, "--rdzv-conf=join_timeout=1", "{observer}"),), MANAGED)
NO_ADDRESS = Launch((("--nnodes=2", *DYNAMIC, "--rdzv-conf=join_timeout=1", "{observer}"),))
ALONE = Launch((("--nnodes=1:2", *DYNAMIC, "--rdzv-conf=last_call_timeout=1", "{observer}", "end"),), ranks=1)
UNMANAGED: dict[str, Launch] = {
    "two nodes": Launch(
        tuple(("--nnodes=2", f"--node-rank={rank}", *STATIC, "{observer}", "meet") for rank in range(2)),
    ),
    "one node with an address": Launch(
        (("--nnodes=1", *STATIC, "--nproc-per-node=2", "--max-restarts=1", "{observer}", "fail", "9"),)
    ),
}
LATE = Launch(
    (("--nnodes=1:2", *DYNAMIC, "--rdzv-conf=last_call_timeout=1", "{observer}", "grow"),) * 2,
    {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    after="alone",
)
"""Without the variable torchrun hangs here by itself: its first node writes its address into the first store alone."""


@pytest.mark.parametrize("name", FIXED)
def test_two_nodes(play: Play, name: str) -> None:
    """torch complains of a lost store if the node that has it leaves first, which happens by chance."""
    pair = play(FIXED[name])
    pair.check_ranks()
    assert pair.stock.statuses == [0, 0], pair.stock.text
    assert sorted(pair.stock.ranks) == ["seen-0-0-of-2", "seen-1-0-of-2"]


def test_fewer_than_the_most(play: Play) -> None:
    """The job starts with the nodes that have come by the last call. There is no output about a manager."""
    pair = play(ALONE)
    pair.check()
    assert pair.stock.statuses == [0]
    assert min(pair.stock.seconds, pair.taskd.seconds) > 1


@pytest.mark.parametrize("name", UNMANAGED)
def test_no_manager_where_one_is_presumed(play: Play, name: str) -> None:
    """torchrun's own behaviour holds from the start, without any output about that."""
    pair = play(UNMANAGED[name])
    assert pair.taskd.statuses == pair.stock.statuses, pair.taskd.text
    assert sorted(pair.taskd.ranks) == sorted(pair.stock.ranks)
    assert "taskd" not in pair.taskd.text.replace(str(PROGRAMS), "")
    assert pair.taskd.seconds < pair.stock.seconds + 8


def test_nobody_else_comes(play: Play) -> None:
    """torch gives up after its time limit. The missing manager changes nothing."""
    pair = play(NOBODY)
    for seen in (pair.stock, pair.taskd):
        assert seen.statuses == [1]
        assert "RendezvousTimeoutError" in seen.text
        assert not seen.ranks


def test_a_fixed_number_of_nodes_and_no_address(play: Play) -> None:
    """Only the user knows where such a job has its manager: one line asks for it, and torchrun goes on."""
    pair = play(NO_ADDRESS)
    assert pair.taskd.statuses == pair.stock.statuses == [1]
    assert pair.taskd.text.count("taskd cannot take part: TASKD_MANAGER: found nothing") == 1, pair.taskd.text
    assert "RendezvousTimeoutError" in pair.taskd.text


def test_a_node_that_comes_late(play: Play) -> None:
    """All ranks start again in the larger world. taskd's words about that are not part of torchrun's contract."""
    pair = play(LATE)
    for seen in (pair.stock, pair.taskd):
        assert seen.statuses == [0, 0], seen.text
        assert sorted(seen.ranks) == ["seen-0-0-of-1", "seen-0-0-of-2", "seen-1-0-of-2"]
        assert "stdout: last line of rank 1, attempt 0, on stdout" in seen.console
