"""Memory and sockets without a name: other processes reach them, none can truncate them, they end with their owner."""

import errno
import fcntl
import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taskd.runtime.folders import nameless
from taskd.runtime.folders.nameless import KeptMemory, erase_record, open_kept, read_record, unname, write_record

WRITES = "import os, sys; os.pwrite(os.open(sys.argv[1], os.O_RDWR), b'from there', 0)"
VISITS = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"


def run(program: str, path: Path) -> int:
    return subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode


@pytest.fixture(params=["sealed", "refused"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield memory from a kernel with sealed memory, and from one that refuses it."""
    if request.param == "refused":
        monkeypatch.setattr(nameless, "make_memfd", refuse)
    made = KeptMemory("test", tmp_path)
    yield made
    made.close()


def refuse(_name: str, _flags: int) -> int:
    raise PermissionError(errno.EPERM, "as a seccomp filter refuses it")


def test_another_process_writes_to_it_and_no_folder_has_it(memory: KeptMemory, tmp_path: Path) -> None:
    assert run(WRITES, memory.path) == 0
    assert memory.path.read_bytes() == b"from there"
    assert memory.path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == []


def test_nobody_cuts_what_a_process_has_mapped(tmp_path: Path) -> None:
    """Neither by `truncate` or opening it again, nor by a seal that would keep its owner from writing."""
    kept = KeptMemory("test", tmp_path)
    descriptor = open_kept(kept.path)
    os.posix_fallocate(descriptor, 0, 8192)
    mapped = mmap.mmap(descriptor, 8192)
    for cut in (lambda: os.truncate(kept.path, 0), lambda: os.open(kept.path, os.O_RDWR | os.O_TRUNC)):
        with pytest.raises(PermissionError):
            cut()
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, nameless._ADD_SEALS, 8)
    mapped[5000] = 1
    assert mapped[5000] == 1
    mapped.close()
    os.close(descriptor)
    kept.close()


def test_it_ends_with_its_owner() -> None:
    program = (
        "import sys; from pathlib import Path; from taskd.runtime.folders.nameless import KeptMemory; "
        "print(KeptMemory('test', Path('/tmp')).path, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        os.close(open_kept(path))
        owner.kill()
    assert not path.exists()


def test_too_many_descriptors_are_told(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
    made: list[KeptMemory] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            made.extend(KeptMemory("test", tmp_path) for _ in range(9))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in made:
            one.close()


def test_what_is_no_file_of_this_user_is_not_taken(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    theirs = tmp_path / "theirs"
    theirs.touch()
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
        with pytest.raises(PermissionError):
            open_kept(theirs)
    with pytest.raises(OSError, match="expected a regular file"):
        open_kept(nameless.way_to(reads))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels"):
        open_kept(tmp_path / "link")
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("named", [True, False], ids=["a log", "a log without a name"])
def test_a_number_that_is_another_files_now_is_refused(memory: KeptMemory, tmp_path: Path, named: bool) -> None:
    """A rank is still in its set-up when the agent has released its memory and torchrun has opened a log."""
    number = int(memory.path.name)
    with (tmp_path / "log").open("w+b") if named else tempfile.TemporaryFile(dir=tmp_path) as log:
        log.write(b"what torchrun logs")
        log.flush()
        kept = os.dup(number)
        os.dup2(log.fileno(), number)
        try:
            for use in (lambda: write_record(memory.path, b"results"), lambda: os.close(open_kept(memory.path))):
                with pytest.raises(OSError, match="expected memory of the agent"):
                    use()
        finally:
            os.dup2(kept, number)
            os.close(kept)
        log.seek(0)
        assert log.read() == b"what torchrun logs"
    write_record(memory.path, b"results")
    assert read_record(memory.path) == b"results"


def test_a_record_is_whole_or_damaged_or_none(memory: KeptMemory) -> None:
    assert read_record(memory.path) is None
    write_record(memory.path, b"x" * 100_000)
    write_record(memory.path, b"shorter")
    assert read_record(memory.path) == b"shorter"
    for at in (2, 8, 12, 16, 24, 30):
        with memory.path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(ValueError, match="damaged record"):
            read_record(memory.path)
        write_record(memory.path, b"shorter")
    erase_record(memory.path)
    assert read_record(memory.path) is None


@pytest.fixture
def listener(run_dir: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(str(run_dir / "socket"))
        made.listen(8)
        yield made


def test_a_socket_is_reached_without_its_name(listener: socket.socket, run_dir: Path) -> None:
    way, entry = unname(listener, run_dir / "socket")
    assert not (run_dir / "socket").exists()
    assert run(VISITS, way) == 0
    listener.setblocking(False)
    listener.accept()[0].close()
    with pytest.raises(BlockingIOError):  # the trial connection of `unname` is not pending
        listener.accept()
    os.close(entry)


def test_where_that_way_does_not_work_it_keeps_its_name(
    listener: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nameless, "way_to", lambda descriptor: run_dir / "nowhere")
    assert unname(listener, run_dir / "socket") == (run_dir / "socket", -1)
    assert run(VISITS, run_dir / "socket") == 0
