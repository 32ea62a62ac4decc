"""Jobs in containers and under settings of their hosts: namespaces, seccomp, signals, users, folders, variables."""

import shutil
from pathlib import Path

from tests.bare.job import Job, Place
from tests.bare.judge import Wanted
from tests.bare.stage import Environment

_MAY_REFUSE = Wanted(protected=False)
_MOUNTS = ("--mount",)
_FIRST = ("--pid", "--fork", "--kill-child", "--mount-proc")
_AGAIN = """
mount --bind "$BARE_FOLDER/shm" /dev/shm
mkdir "$BARE_FOLDER/first"
unshare --pid --fork --kill-child --mount-proc "${@:1:$#-2}" "$BARE_FOLDER/first" "${@: -1}" &
until ls "$BARE_FOLDER"/first/here-1-* &>/dev/null; do sleep 0.1; done
kill -9 $!
wait $! || true
exec unshare --pid --fork --kill-child --mount-proc "$@"
"""
_SERVICES = """
for n in {1..3500}; do
    export "SERVICE_NUMBER_${n}_OF_A_CLUSTER_PORT_443_TCP=tcp://10.96.$((n / 256)).$((n % 256)):443"
done
"""
_NAMELESS = """
ip link set lo up
hostname nowhere-to-be-found
mount --bind /dev/null /etc/resolv.conf
"""
_NETWORK = ("--net", "--uts", "--mount")
_USER = """
if [[ -n $BARE_CLOSED ]]; then # the interpreter lies where other users may not enter
    mkdir "$BARE_FOLDER/base"
    mount --bind "$BARE_BASE" "$BARE_FOLDER/base"
    mount -t tmpfs -o mode=755 none "$BARE_CLOSED"
    mkdir -p "$BARE_BASE"
    mount --bind "$BARE_FOLDER/base" "$BARE_BASE"
fi
{}
exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"
"""
_REFUSE = 'exec python "$BARE_PROGRAMS/refuse.py" {} {} "$@"'
_TRACING = "ptrace,process_vm_readv,process_vm_writev,pidfd_getfd,kcmp,perf_event_open,bpf,userfaultfd,io_uring_setup"
_NON_ASCII = """
mkdir -p "$BARE_FOLDER/tmp/Übung ä"
export TMPDIR="$BARE_FOLDER/tmp/Übung ä" LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0
cd "$TMPDIR"
"""
_READ_ONLY_ROOT = """
mount --bind "$BARE_FOLDER" "$BARE_FOLDER"
mount -o remount,bind,ro /
mount -t tmpfs none /tmp
unset TMPDIR
"""
_DOCKER = """
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t tmpfs -o ro none /sys
"""
_PROXIES = dict.fromkeys(
    ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://10.255.255.1:3128"
)


def _user(before: str = "", uid: int = 12345) -> str:
    return _USER.format(before, uid=uid)


def _sweep(name: str, folder: Path) -> None:
    for path in (folder / name).iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sweep_temporary(folder: Path) -> None:
    _sweep("tmp", folder)


def _sweep_shared(folder: Path) -> None:
    _sweep("shm", folder)


JOBS_CONTAINED = (
    Environment(
        "seccomp: pidfd_open", "C13", "the kernel refuses pidfd_open: older Docker, Linux before 5.3",
        Job(Place(_REFUSE.format("EPERM", "pidfd_open"))),
    ),
    Environment(
        "seccomp: memfd_create", "C13", "the kernel refuses memfd_create",
        Job(Place(_REFUSE.format("EPERM", "memfd_create")), _MAY_REFUSE),
    ),
    Environment(
        "seccomp: tracing", "C13", "no process may look into another",
        Job(Place(_REFUSE.format("EPERM", _TRACING))),
    ),
    Environment(
        "system calls of Linux 4.18", "C13", "later ones answer ENOSYS",
        Job(Place(_REFUSE.format("ENOSYS", "newer-than-423"))),
    ),
    Environment("SIGCHLD ignored", "C9", "by the parent of torchrun", Job(Place('exec env --ignore-signal=CHLD "$@"'))),
    Environment(
        "SIGHUP and SIGINT ignored", "C9", "as nohup and `&` of a script leave them",
        Job(Place('exec env --ignore-signal=HUP --ignore-signal=INT --ignore-signal=QUIT "$@"')),
    ),
    Environment(
        "signals blocked", "C9", "SIGTERM, SIGCHLD and SIGUSR1 are blocked by the parent",
        Job(Place('exec env --block-signal=TERM --block-signal=CHLD --block-signal=USR1 "$@"')),
    ),
    Environment("PID 1", "A7", "torchrun is the first process of its container", Job(Place(unshare=_FIRST))),
    Environment(
        "PID 1 again", "A7", "its first container was killed; the second one has the same shared memory",
        Job(Place(_AGAIN, _MOUNTS)),
    ),
    Environment(
        "user namespace", "A7", "a rootless container: root inside, and no other user known",
        Job(Place(unshare=("--user", "--map-root-user", *_FIRST))),
    ),
    Environment(
        "variables: 3,500", "C14", "as Kubernetes makes them of services: 257 kB",
        Job(Place(_SERVICES)),
    ),
    Environment(
        "variables: one of 128 kB", "C14", "as long as the kernel allows",
        Job(Place("export LONG=$(head -c 131000 /dev/zero | tr '\\0' x)")),
    ),
    Environment(
        "variables: not UTF-8", "C14", "a name in Latin-1", Job(Place("export OWNER=$'J\\xf6rg' $'OLD=/home/\\xe9'"))
    ),
    Environment("LC_ALL=C", "C14", "with folders that are not ASCII", Job(Place(_NON_ASCII))),
    Environment(
        "TMPDIR swept", "C18", "a cleaner empties the folder of temporary files",
        Job(Place(during=_sweep_temporary)),
    ),
    Environment(
        "/dev/shm swept", "C18", "RemoveIPC empties shared memory while the job runs",
        Job(Place('mount --bind "$BARE_FOLDER/shm" /dev/shm', _MOUNTS, during=_sweep_shared)),
    ),
    Environment(
        "TMPDIR deep", "C18", "a path of 230 characters",
        Job(Place('export TMPDIR="$BARE_FOLDER/tmp/$(printf "%0100d/%0100d" 1 2)"; mkdir -p "$TMPDIR"')),
    ),
    Environment(
        "TMPDIR noexec", "C18", "nothing may be executed from it",
        Job(Place('mount -t tmpfs -o noexec,nosuid,nodev none "$BARE_FOLDER/tmp"', _MOUNTS)),
    ),
    Environment(
        "TMPDIR read-only", "C18", "/tmp too: only the job's folder can be written",
        Job(Place('mount --bind "$BARE_FOLDER" "$BARE_FOLDER"; mount -o remount,bind,ro /; '
                  'mount -t tmpfs -o ro none "$BARE_FOLDER/tmp"', _MOUNTS), _MAY_REFUSE),
    ),
    Environment(
        "read-only root", "C18", "readOnlyRootFilesystem of Kubernetes, with a /tmp",
        Job(Place(_READ_ONLY_ROOT, _MOUNTS)),
    ),
    Environment("HOME unset", "C18", "as services start", Job(Place("unset HOME"))),
    Environment("HOME missing", "C18", "the folder does not exist", Job(Place(env={"HOME": "/nonexistent"}))),
    Environment("umask 077", "C18", "nobody else reads what is written", Job(Place("umask 077"))),
    Environment(
        "another user", "C18", "a number without a name, as `docker run --user` gives it",
        Job(Place(_user(), _MOUNTS, env={"HOME": "/"})),
    ),
    Environment(
        "another user, hidepid", "C18", "he sees no process of others",
        Job(Place(_user("mount -t proc -o hidepid=2 proc /proc", 12346), _FIRST, env={"HOME": "/"})),
    ),
    Environment(
        "ulimit -u 80", "B8", "another user who may have 80 processes and threads",
        Job(Place(_user("ulimit -u 80", 12347), _MOUNTS, env={"HOME": "/"}), _MAY_REFUSE),
    ),
    Environment("ulimit -v 8 GB", "B8", "of address space", Job(Place("ulimit -v 8000000"))),
    Environment(
        "1.5 GB of memory", "B8", "a cgroup that the job and its page cache share",
        Job(Place('echo $$ >"$BARE_CGROUP"', memory_bytes=1_500_000_000), _MAY_REFUSE),
    ),
    Environment("/proc and /sys of Docker", "C13", "read-only or hidden", Job(Place(_DOCKER, _FIRST))),
    Environment("stdin closed", "C9", "descriptor 0 is free", Job(Place("exec <&-"))),
    Environment("stdout closed", "C9", "descriptor 1 is free", Job(Place("exec >&-"))),
    Environment("all three closed", "C9", "as some daemons leave them", Job(Place("exec <&- >&- 2>&-"))),
    Environment(
        "no name for the host", "B9", "a network of its own, and no resolver knows the host's name",
        Job(Place(_NAMELESS, _NETWORK, options=("--master-addr=127.0.0.1", "--master-port={port}"))),
    ),
    Environment(
        "no IPv6", "B9", "it is switched off",
        Job(Place("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up", _NETWORK)),
    ),
    Environment("proxies", "B9", "http_proxy and its like are set", Job(Place(env=_PROXIES))),
)  # fmt: skip
