"""Attacks over the network and by other users of the machine, without a secret and without a file of the job."""

import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from taskd.config.security import Security
from taskd.runtime.links.links import ManagerSocket
from taskd.wire.messages import Directive, Order
from tests.attacks.job import WRONG_SECRET, Attack, AttackedJob, reachable
from tests.attacks.peers import STATUS, Insider
from tests.attacks.silence import SILENT, recover_among_silent_ones, start_anew_among_silent_ones
from tests.launch import free_port

_NETWORK, _OTHER = "the network", "another user"
ELSEWHERE = "127.0.0.2"
"""Another address of this machine than the intended one, for access as from the network."""
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
STRANGER = "refused a connection"
STARVED = "no descriptor is left for another connection"


def noise(job: AttackedJob) -> None:
    """Send other protocols to the manager's port."""
    for words in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + bytes(200),
        os.urandom(5000),
        b"\xff" + bytes(8) + b"\x7f",
    ):
        with socket.create_connection((job.address.host, job.address.port), 5.0) as link, suppress(OSError):
            link.sendall(words)
            link.settimeout(0.2)
            link.recv(100)


def strangers(job: AttackedJob, secret: str | None) -> None:
    """Speak taskd's protocol without the job's secret."""
    peer = Insider(job.address, secret)
    with suppress(Exception):
        for _ in range(16):
            peer.send({**STATUS, "ledger": {"term": 7}})
    assert not peer._dealer.poll(2000), "the manager has answered"
    peer.close()


def write_to_stores(job: AttackedJob, host: str) -> None:
    """Write all guessable keys to each store that torchrun serves, if it is reachable at `host`."""
    for port in job.ports():
        if not reachable(host, port):
            continue
        with suppress(RuntimeError):
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
            for generation in range(1, 6):
                for rank in (0, 1):
                    store.set(f"taskd/{generation}/default_pg/0//cpu//0/{rank}", "nonsense")
                    store.set(f"//taskd/{generation}/default_pg/0/cpu/0/{rank}", "nonsense")
            store.add("taskd-swept", 100)


def taskds_store_is_not_there(job: AttackedJob) -> None:
    """Check that taskd's store and manager do not answer elsewhere. torchrun's own stores do, as without taskd."""
    write_to_stores(job, ELSEWHERE)
    ports = job.ports()
    hidden = [port for port in ports if not reachable(ELSEWHERE, port)]
    assert len(hidden) == 2, f"of the ports {ports} {hidden} do not answer at {ELSEWHERE}, expected two"


def starve(job: AttackedJob) -> None:
    """Leave the manager no descriptor while strangers connect and give up; then give it some again."""
    assert job.manager is not None
    pid = job.manager.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    least_free = min(set(range(len(used) + 1)) - used)  # with less ZeroMQ could not even poll its present sockets
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (least_free, hard))
    for _ in range(10):
        socket.create_connection((job.address.host, job.address.port), 5.0).close()
    manager = job.manager
    job.wait(lambda: STARVED in job.launcher.output(manager), "a line of the manager")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    strangers_are_heard(job)
    assert STRANGER not in job.launcher.output(manager), "the secret is blamed"


def strangers_are_heard(job: AttackedJob) -> None:
    """Check that the manager accepts connections again: a peer with the secret gets an answer."""
    peer = Insider(job.address)
    peer.settle()
    peer.close()


def empty_secret(job: AttackedJob) -> None:
    """Empty the file by which this user's processes recognise each other. No manager starts with an empty one."""
    own = job.run_dir / f"own-{os.getuid()}"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    (own / "loopback").write_bytes(b"")
    words = [sys.executable, "-m", "taskd", "manager", "--nodes", "1", "--procs-per-node", "2"]
    env = {name: str(value) for name, value in job.environment().items() if value is not None}
    env = {**os.environ, **env, "TASKD_MANAGER_PORT": str(free_port())}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=False)
    (own / "loopback").unlink()
    assert ran.returncode, "the manager has started"
    assert "found no secret (0 bytes), expected 64 hexadecimal digits" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr


def listen_first(job: AttackedJob, secret: str | None) -> None:
    """Serve at the manager's address before the manager, and order every agent to stop."""
    over = threading.Event()
    neighbour = ManagerSocket(job.address, Security(secret.encode() if secret else None))
    stop = Directive(job_id="default", sequence=2**40, generation=1, order=Order.STOP, reason="go home")

    def serve() -> None:
        while not over.is_set():
            neighbour.poll(0.05)
            for peer, _ in neighbour.receive():
                neighbour.send(peer, stop)

    thread = threading.Thread(target=serve)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()
        neighbour.close()

    job.also.callback(end)
    job.env |= {"TASKD_MANAGER": str(job.address), "TASKD_MANAGER_WAIT_S": "1", "TASKD_STANDBY": "0"}


def as_nobody(*words: object) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user who owns nothing."""
    return subprocess.run([*AS_NOBODY, *map(str, words)], capture_output=True, text=True, timeout=30, check=False)


def look_around(job: AttackedJob) -> None:
    """Read, write and connect to everything as another user."""
    os.chmod(job.folder, 0o755)
    for folder in (job.run_dir, *Path("/dev/shm").glob("taskd-*")):
        assert as_nobody("ls", folder).returncode, f"{folder} was listed"
    for path in [
        *job.run_dir.rglob("*"),
        *(found for one in Path("/dev/shm").glob("taskd-*") for found in one.rglob("*")),
    ]:
        assert as_nobody("cat", path).returncode, f"{path} was read"
        assert as_nobody("sh", "-c", f"echo x >> '{path}'").returncode, f"{path} was written"
        as_nobody("rm", "-rf", path)
        assert path.exists(), f"{path} was removed"


def made_first(job: AttackedJob) -> None:
    """Make the run directory as a neighbour, with a link in it to a file of the user."""
    precious = job.folder / "precious"
    precious.write_text("the user's own")
    job.run_dir.mkdir(mode=0o777)
    (job.run_dir / "default").symlink_to(precious)
    os.chown(job.run_dir, 65534, 65534)


def untouched(job: AttackedJob) -> None:
    """Check that the neighbour's folder and the link's target are unchanged."""
    assert (job.folder / "precious").read_text() == "the user's own"
    assert os.listdir(job.run_dir) == ["default"]


def link_elsewhere(job: AttackedJob) -> None:
    """Make a link of our name to the user's home in the directory for temporary files, as a neighbour."""
    home, shared = job.folder / "home", job.folder / "tmp"
    home.mkdir()
    shared.mkdir()
    os.chmod(shared, 0o1777)
    link = shared / f"taskd-{os.getuid()}"
    link.symlink_to(home)
    os.lchown(link, 65534, 65534)
    job.env |= {"TASKD_RUN_DIR": None, "XDG_RUNTIME_DIR": None, "TMPDIR": str(shared)}


def home_untouched(job: AttackedJob) -> None:
    """Check that nothing was written there."""
    assert not os.listdir(job.folder / "home")


def litter(job: AttackedJob) -> None:
    """Fill /dev/shm with objects like ours, as a neighbour: links, pipes, folders of dead processes."""
    for number in range(40):
        name = f"/dev/shm/taskd-{4_000_000 + number}-{job.folder.name}"
        script = (f"mkdir {name}; mkfifo {name}/box-0-0", f"mkfifo {name}", f"ln -s {job.folder} {name}")[number % 3]
        as_nobody("sh", "-c", script)
        job.also.callback(remove, Path(name))


def remove(path: Path) -> None:
    """Remove a folder, a file or any other entry."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def nothing(job: AttackedJob) -> None:
    """Do nothing: everything was done before the job began."""


OUTSIDERS = (
    Attack("other protocols at the port", _NETWORK, noise, log=STRANGER),
    Attack("taskd without a secret", _NETWORK, lambda job: strangers(job, None), log=STRANGER),
    Attack("taskd with another secret", _NETWORK, lambda job: strangers(job, WRONG_SECRET), log=STRANGER),
    Attack(
        "2,500 silent connections and 250 a second", _NETWORK, recover_among_silent_ones, log=SILENT, restarts=30,
    ),
    Attack("silent connections while the manager starts anew", _NETWORK, start_anew_among_silent_ones, log=SILENT),
    Attack("writes to the store from elsewhere", _NETWORK, taskds_store_is_not_there, manager=False),
    Attack("writes to the store from here", _OTHER, lambda job: write_to_stores(job, "127.0.0.1"), manager=False),
    Attack(
        "a neighbour listens first", _OTHER, nothing, prepare=lambda job: listen_first(job, None),
        manager=False, in_place=False, log="refused our secret, or has none.*TASKD_RUN_DIR; taskd keeps trying",
    ),
    Attack(
        "a neighbour with a secret listens first", _OTHER, nothing, prepare=lambda job: listen_first(job, WRONG_SECRET),
        manager=False, in_place=False, log="refused our secret, or has none.*TASKD_RUN_DIR; taskd keeps trying",
    ),
    Attack("another user looks around", _OTHER, look_around),
    Attack("a manager without descriptors", _NETWORK, starve, log=STARVED),
    Attack("an empty secret file", "the same user", empty_secret, manager=False),
    Attack(
        "a run directory of a neighbour", _OTHER, untouched, prepare=made_first, manager=False, in_place=False,
    ),
    Attack(
        "a run directory that is a link", _OTHER, home_untouched, prepare=link_elsewhere, manager=False, in_place=False,
    ),
    Attack("litter in shared memory", _OTHER, nothing, prepare=litter),
)  # fmt: skip
