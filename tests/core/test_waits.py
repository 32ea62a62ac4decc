"""Which rank waits for which: chains over several communicators, transfers, cycles, and operations only enqueued."""

from dataclasses import replace

import pytest

from taskd.core.diagnosis.evidence import Clocks, Collective, Communicator, Evidence
from taskd.core.diagnosis.findings import Kind
from taskd.core.diagnosis.operation import Operation
from tests.core.scenarios import HANG, but, diagnosed, known_of

ANSWERS = Clocks(0.1, 0.0, 0.0)
SILENT = Clocks(0.1, 0.0, 3.0)


def inside(comm: int, number: int, op: Operation = Operation.ALLREDUCE, peer: int = -1) -> Collective:
    return Collective(op, comm, number, 64, peer, entered_s=3.0)


def rank(*seats: tuple[int, int, int], number: int = 5, call: Collective | None = None, **more: object) -> Evidence:
    """Return the evidence of a rank of these communicators (id, rank in it, size), perhaps waiting in one of them."""
    table = tuple(
        Communicator(
            comm, call.number if call is not None and call.comm == comm and call.number else number, seat, size
        )
        for comm, seat, size in seats
    )
    known = known_of(clocks=SILENT if call else ANSWERS, communicators=table, collectives=(call,) if call else ())
    return but(known, **more)


def diagnosis_of(*ranks: Evidence) -> tuple[Kind, tuple[int, ...], tuple[int, ...]]:
    diagnosis = diagnosed(dict(enumerate(ranks)), hang=HANG)
    assert diagnosis is not None
    return diagnosis.kind, diagnosis.culprits, diagnosis.victims


def crossed() -> dict[int, Evidence]:
    """Return evidence in which rank 3 called the collective of communicator 2 before that of communicator 1."""
    seats = [((1, seat, 4), (2, seat, 4)) for seat in range(4)]
    return {seat: rank(*seats[seat], call=inside(2 if seat == 3 else 1, 6)) for seat in range(4)}


def test_a_chain_over_communicators_ends_at_its_root() -> None:
    """0 waits for 1 in A, 1 for 2 in B, 2 for 3 in C, and 3 runs in an endless loop."""
    assert diagnosis_of(
        rank((1, 0, 2), call=inside(1, 6)),
        rank((1, 1, 2), (2, 0, 2), call=inside(2, 6)),
        rank((2, 1, 2), (3, 0, 2), call=inside(3, 6)),
        rank((3, 1, 2)),
    ) == (Kind.LOOP, (3,), (0, 1, 2))


def test_a_pipeline_waits_for_the_stage_that_sends_nothing() -> None:
    seats = [(9, stage, 4) for stage in range(4)]
    assert diagnosis_of(
        rank(seats[0], call=inside(9, 0, Operation.RECV, 1)),
        rank(seats[1]),
        rank(seats[2], call=inside(9, 0, Operation.RECV, 1)),
        rank(seats[3], call=inside(9, 0, Operation.RECV, 2)),
    ) == (Kind.LOOP, (1,), (0, 2, 3))


def test_a_transfer_with_both_ends_in_it_is_stuck() -> None:
    assert diagnosis_of(
        rank((9, 0, 2), call=inside(9, 0, Operation.SEND, 1)), rank((9, 1, 2), call=inside(9, 0, Operation.RECV, 0))
    ) == (Kind.CONNECTION_CUT, (), (0, 1))


def test_who_calls_in_another_order_is_the_few() -> None:
    diagnosis = diagnosed(crossed(), hang=HANG)
    assert diagnosis is not None
    assert (diagnosis.kind, diagnosis.culprits, diagnosis.victims) == (Kind.OP_MISMATCH, (3,), (0, 1, 2))


def test_of_two_that_wait_for_each_other_both_are_named() -> None:
    seats = [((1, seat, 2), (2, seat, 2)) for seat in range(2)]
    assert diagnosis_of(rank(*seats[0], call=inside(1, 6)), rank(*seats[1], call=inside(2, 6)))[:2] == (
        Kind.OP_MISMATCH,
        (0, 1),
    )


def test_whoever_hangs_on_a_circle_is_a_victim() -> None:
    circle = crossed()
    victims = [rank((1, 0, 2), call=inside(5, 6)), rank((5, 0, 2), call=inside(5, 6))]
    ranks = {**circle, 4: rank((5, 0, 2), call=inside(5, 6)), 5: but(circle[0], communicators=())}
    ranks[0] = but(ranks[0], communicators=(*ranks[0].calls.communicators, Communicator(5, 5, 1, 2)))
    del ranks[5], victims
    diagnosis = diagnosed(ranks, hang=HANG)
    assert diagnosis is not None
    assert (diagnosis.culprits, diagnosis.victims) == ((3,), (0, 1, 2, 4))


def test_several_culprits_are_all_named_each_with_its_kind() -> None:
    seats = [(1, seat, 4) for seat in range(4)]
    found = diagnosis_of(
        rank(seats[0], call=inside(1, 6)),
        rank(seats[1]),
        rank(seats[2], clocks=Clocks(0.1, 3.0, 3.0)),
        rank(seats[3], call=inside(1, 6)),
    )
    assert found == (Kind.GIL_HELD, (1, 2), (0, 3))


def test_an_enqueued_operation_is_waited_for_by_a_main_thread_that_does_not_answer() -> None:
    """NCCL: for the host, the calls have ended."""

    def enqueued(number: int) -> Collective:
        return Collective(Operation.ALLREDUCE, 1, number, 64, entered_s=3.0, left_s=3.0, enqueued=True)

    seats = [(1, seat, 3) for seat in range(3)]
    ahead = [but(rank(seat, number=6), clocks=SILENT, collectives=(enqueued(6),)) for seat in seats[:2]]
    behind = but(rank(seats[2], number=5), collectives=(enqueued(5),))
    assert diagnosis_of(*ahead, behind) == (Kind.LOOP, (2,), (0, 1))
    assert diagnosis_of(*ahead, replace(behind, clocks=SILENT)) == (Kind.BLOCKED, (2,), (0, 1))


def on_device(kernel_s: float | None, **more: object) -> Evidence:
    """Return the evidence of an NCCL rank whose host has enqueued all operations and waits for its device."""
    stack = ("/x/torch/distributed/distributed_c10d.py:2810 in all_reduce",)
    return but(known_of(clocks=SILENT, stack=stack, kernel_s=kernel_s), **more)


def test_a_device_that_has_not_come_to_the_kernel_in_which_others_wait_is_behind() -> None:
    waiting, idle = on_device(3.0), on_device(0.0)
    assert diagnosis_of(waiting, idle, waiting) == (Kind.DEVICE_BEHIND, (1,), (0, 2))
    assert diagnosis_of(idle, waiting, idle) == (Kind.DEVICE_BEHIND, (0, 2), (1,))


def test_what_the_host_of_an_idle_device_does_is_told_first() -> None:
    idle = on_device(0.0, clocks=Clocks(0.1, 3.0, 3.0))
    assert diagnosis_of(on_device(3.0), idle, on_device(3.0)) == (Kind.GIL_HELD, (1,), (0, 2))


@pytest.mark.parametrize(
    "running_s",
    [
        (3.0, 3.0, 2.0),  # all are in the kernel
        (0.0, 0.0, 0.0),  # no rank is in the kernel
        (3.0, None, None),  # unknown for the other two
        (3.0, 0.4, 3.0),  # it has just come
        (0.0, 0.4, 0.4),  # the others have just come
    ],
)
def test_without_two_sorts_of_devices_nobody_is_accused_by_them(running_s: tuple[float | None, ...]) -> None:
    kind, culprits, _ = diagnosis_of(*map(on_device, running_s))
    assert (kind, culprits) == (Kind.STALLED, ())


def test_a_rank_that_waits_for_another_does_not_keep_its_device_idle() -> None:
    """All ranks take part in a collective of gloo that does not end, and one has a kernel of its own in progress."""
    seats = [(1, seat, 3) for seat in range(3)]
    ranks = [but(rank(seat, call=inside(1, 6)), kernel_s=0.0) for seat in seats]
    ranks[1] = but(ranks[1], kernel_s=3.0)
    assert diagnosis_of(*ranks) == (Kind.CONNECTION_CUT, (), (0, 1, 2))


def test_a_rank_that_has_not_opened_the_communicator_of_the_job_is_behind() -> None:
    seats = [(1, seat, 3) for seat in range(3)]
    assert diagnosis_of(
        rank(seats[0], call=inside(1, 1), number=0), rank(seats[1], call=inside(1, 1), number=0), rank()
    ) == (Kind.LOOP, (2,), (0, 1))


@pytest.mark.parametrize("stacked", [True, False])
def test_without_a_black_box_the_few_that_do_something_else_are_named(stacked: bool) -> None:
    stack = ("/x/torch/distributed/distributed_c10d.py:2810 in all_reduce",) if stacked else ()
    waiting = known_of(clocks=SILENT, stack=stack)
    kind, culprits, victims = diagnosis_of(waiting, Evidence(clocks=ANSWERS), waiting)
    assert (kind, culprits) == (Kind.LOOP, (1,))
    assert victims == ((0, 2) if stacked else ())


def test_without_anything_else_the_lowest_step_is_behind() -> None:
    assert diagnosis_of(known_of(step=7), known_of(step=6), known_of(step=7)) == (Kind.BEHIND, (1,), ())
