"""The benchmark of a lost node: its command line, and the reading of its ranks' logs."""

from pathlib import Path

import pytest

from benchmarks.nodes import NodeLogs
from benchmarks.recovery import arguments


def test_nodes_have_defaults_of_their_own() -> None:
    args = arguments(["--nodes", "3"])
    assert (args.nodes, args.pairs, args.limit_s, args.stock_nnodes) == (3, 2, 120, "3")
    args = arguments([])
    assert (args.nodes, args.pairs, args.limit_s) == (None, 5, 40)
    args = arguments(["--nodes", "4", "--pairs", "1", "--limit-s", "60", "--stock-nnodes", "4:5"])
    assert (args.nodes, args.pairs, args.limit_s, args.stock_nnodes) == (4, 1, 60, "4:5")


def test_one_node_is_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--nodes", "1"])
    assert "at least 2" in capsys.readouterr().err


def test_processes_of_two_nodes_may_have_the_same_pid(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path / "steps", 2)

    def write(rank: int, *lines: str) -> None:
        with (logs.directory / f"rank-{rank}.log").open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    write(0, "start 15 1.0", "step 15 1 2.0", "step 15 2 3.1")  # the survivor commits step 2 just after the kill
    write(1, "start 15 1.0", "step 15 1 2.0", "step 15 2 3.1")  # and so did the rank that is lost
    assert logs.all_at(2)
    assert logs.world_resumed_s(2, (1,), 3.0) is None
    write(1, "start 15 4.0")
    assert not logs.all_at(2)
    assert logs.world_resumed_s(2, (1,), 3.0) is None
    write(1, "step 15 3 5.0")
    assert logs.world_resumed_s(2, (1,), 3.0) is None
    write(0, "step 15 3 5.5")
    assert logs.world_resumed_s(2, (1,), 3.0) == 5.5
    assert logs.world_resumed_s(2, (0, 1), 3.0) is None  # where all start anew, rank 0 is still the old one


def test_a_smaller_world_is_asked_only_for_its_own_ranks(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path / "steps", 3)
    for rank in range(3):
        (logs.directory / f"rank-{rank}.log").write_text("start 15 1.0\nstep 15 1 2.0\n")
    for rank in range(2):
        with (logs.directory / f"rank-{rank}.log").open("a") as file:
            file.write(f"start 16 4.0\nstep 16 2 5.{rank}\n")
    assert logs.world_resumed_s(2, range(2), 3.0) == 5.1
    assert logs.world_resumed_s(3, range(3), 3.0) is None
