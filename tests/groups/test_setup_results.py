"""The record of a set-up, and its end."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from taskd.adaptors.groups import collectives
from taskd.adaptors.groups.setup_results import ALL_BYTES, MOST_CALLS_AFTER_A_STEP, Recording, Replay
from taskd.runtime.folders.nameless import read_record


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def ours(_group: object) -> bool:
    return True


@pytest.fixture
def kept() -> list[str]:
    """Return the list of digests that the agent receives."""
    return []


def share(number: float) -> float:
    tensor = torch.tensor([number])
    dist.all_reduce(tensor)
    return tensor.item()


@pytest.mark.usefixtures("alone")
def test_results_are_given_again(tmp_path: Path, kept: list[str]) -> None:
    torchs = dist.all_reduce
    recording = Recording(tmp_path / "file", ours, kept.append)
    bound = dist.all_reduce
    assert [share(5), share(6)] == [5, 6]
    everyone: list[object] = [None]
    dist.all_gather_object(everyone, "mine")
    assert not recording.end()
    assert dist.all_reduce is dist.distributed_c10d.all_reduce is torchs
    bound(torch.ones(1))  # a name that a script has imported meanwhile goes on to work
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    replay = Replay(tmp_path / "file", ours, *kept)
    assert [share(1), share(2)] == [5, 6]
    with pytest.raises(RuntimeError, match=r"collective 3 of .* is \('all_reduce'.* it was \('all_gather_object'"):
        share(3)
    with pytest.raises(RuntimeError, match="has made 2 collectives in its set-up, and its predecessor 3"):
        replay.end()
    assert dist.all_reduce is torchs


@pytest.mark.usefixtures("alone")
def test_without_a_record(tmp_path: Path) -> None:
    replay = Replay(tmp_path / "file", ours, "")
    dist.barrier()
    with pytest.raises(RuntimeError, match="not known on this node"):
        share(1)
    replay.end()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("left", [1, 30, -1])
def test_a_record_that_was_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: list[str], left: int) -> None:
    """It counts as none, so that a set-up without collectives needs no other start."""
    path = tmp_path / "file"
    recording = Recording(path, ours, kept.append)
    share(5)
    recording.end()
    path.write_bytes(path.read_bytes()[:left])
    replay = Replay(path, ours, *kept)
    (told,) = caplog.messages
    assert f"{path} cannot be read" in told
    with pytest.raises(RuntimeError, match="not known on this node"):
        share(1)
    replay.end()


class Code:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["another file", "no digest", "a pipe", "a link"])
def test_what_the_ranks_first_process_has_not_written_is_not_unpickled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: list[str], kind: str
) -> None:
    path, code = tmp_path / "file", pickle.dumps([Code(tmp_path / "owned")])
    recording = Recording(path, ours, kept.append)
    share(5)
    recording.end()
    path.unlink()
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a link":
            (tmp_path / "other").write_bytes(code)
            path.symlink_to(tmp_path / "other")
        case _:
            path.write_bytes(code)
    replay = Replay(path, ours, "" if kind == "no digest" else kept[0])
    assert not (tmp_path / "owned").exists()
    assert f"{path} cannot be read" in caplog.text
    with pytest.raises(RuntimeError, match="not known on this node"):
        share(1)
    replay.end()


@pytest.mark.usefixtures("alone")
def test_what_is_not_kept(tmp_path: Path, kept: list[str]) -> None:
    """Asynchronous results and those beyond 4 MiB are not kept. A new process has no peer to send to."""
    recording = Recording(tmp_path / "file", ours, kept.append)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    work.wait()
    for _ in range(ALL_BYTES // 65_536):
        dist.all_reduce(torch.ones(16_384))
    asynchronous, late = recording.end()
    assert "is asynchronous" in asynchronous.text
    assert "which are too many to keep" in late.text
    assert f"{__file__}:" in late.text
    replay = Replay(tmp_path / "file", ours, *kept)
    with pytest.raises(RuntimeError, match=r"send in the set-up, .* has nobody at the other end yet"):
        dist.send(torch.ones(1), 1)
    with pytest.raises(RuntimeError, match="has made 0 collectives"):
        replay.end()


@pytest.mark.usefixtures("alone")
def test_a_training_without_a_resilient_function(tmp_path: Path, kept: list[str]) -> None:
    """Nothing is wrapped for long, and nothing grows."""
    torchs = dist.all_reduce
    recording = Recording(tmp_path / "file", ours, kept.append)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(MOST_CALLS_AFTER_A_STEP + 1):
        assert dist.all_reduce is not torchs
        optimizer.step()
        share(step)
    assert dist.all_reduce is torchs
    (unkept,) = recording.end()
    assert "too many collectives come before it" in unkept.text
    assert pickle.loads(read_record(tmp_path / "file") or b"") == ([], {})


TORCHS = """
import torch.distributed as dist
def all_reduce(tensor): dist.all_reduce(tensor)
def gather(tensor): dist.all_gather_object([None], tensor)
"""


@pytest.mark.usefixtures("alone")
def test_what_a_trainers_library_communicates_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[str]
) -> None:
    monkeypatch.setattr(collectives, "_libraries", {})
    collectives.leave_alone("somelibrary", through="somelibrary.comm")
    exec(TORCHS, torchs := {"__name__": "torch.distributed.deprecated"})
    of_comm: dict[str, Any] = {**torchs, "__name__": "somelibrary.comm.torch"}
    exec("def wrap(tensor): all_reduce(tensor); gather(tensor)", of_comm)
    engine: dict[str, Any] = {"__name__": "somelibrary.engine", "wrap": of_comm["wrap"]}
    exec("def make(tensor): wrap(tensor)", engine)
    recording = Recording(tmp_path / "file", ours, kept.append)
    engine["make"](torch.ones(1))  # the library's own
    of_comm["wrap"](torch.ones(1))  # the script's, through the library
    share(3)
    assert not recording.end()
    results, _ = pickle.loads(read_record(tmp_path / "file") or b"")
    assert [signature[0] for signature, *_ in results] == ["all_reduce", "all_gather_object", "all_reduce"]


@pytest.mark.usefixtures("alone")
def test_facts_of_the_set_up_come_with_its_results(tmp_path: Path, kept: list[str]) -> None:
    recording = Recording(tmp_path / "file", ours, kept.append)
    share(3)
    recording.end({"the length of the dataset": "10"})
    (digest,) = kept
    replay = Replay(tmp_path / "file", ours, digest)
    share(3)
    replay.end()
    assert replay.facts == {"the length of the dataset": "10"}
    unknown = Replay(tmp_path / "file", ours, "")
    unknown.end()
    assert unknown.facts == {}
