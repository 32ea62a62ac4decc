"""Collectives of gloo, NCCL and HCCL as the box shows them: operation, group, number, size, start and end."""

import time

import pytest

from taskd.runtime.box.blackbox import Backend, BoxPhase, Operation, communicator_id
from tests.shim.armed import PROGRAMS, armed, plain, until

dist = pytest.importorskip("torch.distributed")

THOUSAND_FLOATS = 4000


class Store:
    """A store that can be closed while another object still holds it."""

    def __init__(self):
        self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = self._server.port

    def close(self):
        del self._server


@pytest.fixture(scope="module", autouse=True)
def first_store():
    """Open the pipe that libuv keeps for good with the first store of a process."""
    Store().close()


@pytest.fixture
def ranks(leak_mark, make_box, launcher):
    store = Store()
    boxes = [make_box(), make_box()]

    def start(how, named):
        for rank, box in enumerate(boxes):
            command = ["python", PROGRAMS / "collect.py", str(rank), box.path, str(store.port), named]
            launcher.start(command, env=armed(box.path, RANK=str(rank)) if how == "gate" else plain())
        until(lambda: all(box.read().phase == BoxPhase.FINISHED for box in boxes), "both are through", timeout_s=40)
        until(lambda: boxes[0].clocks().open_event, "the first one waits")
        return boxes

    yield start
    store.close()


def operations(box, comm=None):
    found = [event for event in reversed(box.events()) if event.operation is not Operation.OTHER]
    return [event for event in found if comm is None or event.comm == comm]


@pytest.mark.parametrize(("how", "named"), [("gate", "named"), ("core", "unnamed")])
def test_both_ranks_tell_the_same_of_gloo(how, named, ranks):
    boxes = ranks(how, named)
    comms = [box.communicators() for box in boxes]
    for rank, own in enumerate(comms):
        assert {(one.rank, one.ranks, one.backend) for one in own if one.ranks == 2} == {(rank, 2, Backend.GLOO)}
    shared = [{one.id for one in own} for own in comms]
    world, second = communicator_id("generation 7"), communicator_id("second")
    if named == "named":
        assert shared[0] & shared[1] == {world, second}
        assert len(shared[0]) == 3
    else:
        assert shared[0] == shared[1]
        world, second = (one.id for one in comms[0])
    told = [[(e.operation, e.number, e.bytes) for e in operations(box, world)] for box in boxes]
    expected = ["ALLREDUCE", "ALLGATHER", "BROADCAST", "REDUCE", "GATHER", "SCATTER", "ALLTOALL"]
    collectives = [[one for one in each if one[1]] for each in told]
    assert [one[0].name for one in collectives[0][:8]] == [*expected, "BARRIER"]
    assert [one[1:] for one in collectives[0][:7]] == [(number, THOUSAND_FLOATS) for number in range(1, 8)]
    in_order = [sorted(one, key=lambda each: each[1]) for one in collectives]
    assert in_order[0][:-1] == in_order[1]  # DDP's too; the first rank waits in one more
    assert in_order[0][-1] == (Operation.ALLREDUCE, len(collectives[1]) + 1, 12)
    sizes = [[e.bytes for e in operations(box, second)] for box in boxes]
    assert sizes == [[2 * THOUSAND_FLOATS]] * 2
    transfers = [[e for e in operations(box) if not e.number] for box in boxes]
    assert [(e.operation, e.bytes, e.peer) for e in transfers[0]] == [(Operation.SEND, THOUSAND_FLOATS, 1)]
    assert [(e.operation, e.bytes, e.peer) for e in transfers[1]] == [(Operation.RECV, THOUSAND_FLOATS, 0)]
    assert {e.comm for one in transfers for e in one} == {world}
    for box in boxes:
        for event in operations(box)[:-1]:
            assert 0 < event.entered_ns <= event.left_ns <= time.monotonic_ns()
            assert event.backend is Backend.GLOO
    opened = boxes[0].clocks().open_event
    assert opened is not None
    assert (opened.comm, opened.number, opened.operation) == (world, len(collectives[0]), Operation.ALLREDUCE)
    assert boxes[1].clocks().open_event is None


def build(launcher, target, *options):
    base = ["gcc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-w", "-o", target, PROGRAMS / "fake_ccl.c"]
    assert launcher.run([*base, *options]) == (0, "")


def run(body, libraries, box, launcher, env=None, preload=False):
    command = ["python", PROGRAMS / "libraries.py", box.path, body, *libraries]
    status, output = launcher.run(command, env=(armed(box.path) if preload else plain()) | (env or {}))
    assert status == 0, output
    return output


def build_nccl(launcher, folder):
    """Build a fake NCCL, and a library that is linked to it as libtorch_cuda is. Return the latter's path."""
    build(launcher, folder / "libnccl.so.2", "-DNCCL", "-Wl,-soname,libnccl.so.2")
    linked = [f"-Wl,-rpath,{folder}", folder / "libnccl.so.2"]
    build(launcher, folder / "libcaller.so", "-DCALLER", *linked)
    return folder / "libcaller.so"


@pytest.fixture
def nccl(launcher, tmp_path):
    return build_nccl(launcher, tmp_path)


@pytest.mark.parametrize("preload", [True, False])
def test_nccl_is_noted_and_gets_what_it_was_given(preload, nccl, make_box, launcher):
    boxes = [make_box() for _ in range(3)]
    for rank, box in enumerate(boxes):
        seed = 1 if rank < 2 else 2
        assert run(f"print(libraries[0].train({seed}, {rank}))", [nccl], box, launcher, preload=preload) == "0\n"
    whole, part = boxes[0].communicators()
    assert [(one.backend, one.rank, one.ranks, one.number, one.closed) for one in (whole, part)] == [
        (Backend.NCCL, 0, 4, 4, False),
        (Backend.NCCL, 3, 5, 1, True),
    ]
    told = [(e.operation.name, e.comm, e.number, e.bytes, e.peer) for e in operations(boxes[0])]
    assert told == [
        ("OPEN", 0, 0, 0, -1),
        ("ALLREDUCE", whole.id, 1, 400, -1),
        ("ALLGATHER", whole.id, 2, 400, -1),
        ("REDUCE_SCATTER", whole.id, 3, 2400, -1),
        ("BROADCAST", whole.id, 4, 400, 2),
        ("SEND", whole.id, 0, 2000, 1),
        ("RECV", whole.id, 0, 2400, 3),
        ("OPEN", whole.id, 0, 0, -1),
        ("OPEN", whole.id, 0, 0, -1),
        ("ALLREDUCE", part.id, 1, 4, -1),
        ("CLOSE", part.id, 0, 0, -1),
    ]
    assert all(event.left_ns >= event.entered_ns > 0 for event in operations(boxes[0]))
    ids = [[one.id for one in box.communicators()] for box in boxes]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])


def test_two_nccls_keep_to_their_own_code(launcher, tmp_path, box):
    """Each is linked into its user, as in some builds of torch."""
    callers = []
    for mark in (1000, 2000):
        folder = tmp_path / str(mark)
        folder.mkdir()
        build(launcher, folder / "libcaller.so", "-DCALLER", "-DNCCL", f"-DMARK={mark}")
        callers.append(folder / "libcaller.so")
    body = "print([library.train(1, 0) for library in libraries for _ in range(2)])"
    assert run(body, callers, box, launcher) == "[0, 0, 0, 0]\n"
    assert len(operations(box)) == 44


def test_hccl_asked_for_by_name_is_loaded(launcher, tmp_path, box):
    build(launcher, tmp_path / "libasker.so", "-DASKER")
    build(launcher, tmp_path / "libhccl.so", "-DHCCL", "-Wl,-soname,libhccl.so")
    where = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert run("print(libraries[0].ask(2))", [tmp_path / "libasker.so"], box, launcher, env=where) == "0\n"
    whole, part = box.communicators()
    assert [(one.backend, one.rank, one.ranks) for one in (whole, part)] == [(Backend.HCCL, 2, 8), (Backend.HCCL, 1, 2)]
    told = [(e.operation.name, e.comm, e.number, e.bytes) for e in operations(box)]
    assert told == [
        ("OPEN", 0, 0, 0),
        ("ALLREDUCE", whole.id, 1, 40),
        ("BARRIER", whole.id, 2, 0),
        ("OPEN", whole.id, 0, 0),
        ("ALLREDUCE", part.id, 1, 40),
    ]


def test_a_library_that_is_nowhere_is_an_error_code(launcher, tmp_path, box):
    build(launcher, tmp_path / "libasker.so", "-DASKER")
    assert run("print(libraries[0].ask(2))", [tmp_path / "libasker.so"], box, launcher) == "4\n"
    assert box.communicators() == []


def test_more_communicators_than_there_is_room_for(nccl, box, launcher):
    body = "print({libraries[0].train(seed % 250, 0) for seed in range(300)})"
    assert run(body, [nccl], box, launcher) == "{0}\n"
    found = box.communicators()
    assert len(found) == 128
    assert len([one for one in found if not one.closed]) > 100
    events = operations(box)
    assert events[-1].comm == events[-2].comm == found[-1].id
    assert [event.number for event in events[-11:]] == [0, 1, 2, 3, 4, 0, 0, 0, 0, 1, 0]
