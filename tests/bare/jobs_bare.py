"""Jobs on bare machines: no numpy, few descriptors, MASTER_ADDR exported, little shared memory, odd installations."""

from collections.abc import Iterator

from tests.bare.job import MODULE, TARGET, TWICE, Job, Place
from tests.bare.judge import Wanted
from tests.bare.stage import DEBIAN_12, Environment

_MAY_REFUSE = Wanted(protected=False)
_SHM = "mount -t tmpfs -o {} none /dev/shm"
_MOUNTS = ("--mount",)
_FEW = (48, 64, 80, 100, 128)
_WHY_COLD = Wanted(explains=r"/dev/shm|shared memory")

_NO_SHM = """
dev=$BARE_FOLDER/dev
mkdir "$dev"
mount -t tmpfs -o mode=755 none "$dev"
for name in null zero full random urandom; do touch "$dev/$name"; mount --bind "/dev/$name" "$dev/$name"; done
ln -s /proc/self/fd "$dev/fd"
mount --rbind "$dev" /dev
"""
_CHROOT = """
for name in dev proc sys; do mount --rbind "/$name" "$BARE_ROOT/$name"; done
mount -t tmpfs none "$BARE_ROOT/opt"
mount -t tmpfs none "$BARE_ROOT/var/tmp"
site=$BARE_ROOT/opt/bare/lib/python3.11/site-packages
mkdir -p "$BARE_ROOT/opt/bare/bin" "$site" "$BARE_ROOT$BARE_FOLDER"
ln -s /usr/bin/python3 "$BARE_ROOT/opt/bare/bin/python"
echo 'home = /usr/bin' >"$BARE_ROOT/opt/bare/pyvenv.cfg"
mount --bind "$BARE_SITE" "$site"
touch "$BARE_ROOT/etc/hosts"
mount --bind /etc/hosts "$BARE_ROOT/etc/hosts"
mount --bind "$BARE_FOLDER" "$BARE_ROOT$BARE_FOLDER"
exec chroot "$BARE_ROOT" env -C "$BARE_FOLDER/job" HOME=/root "$@"
"""
_SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_NNODES": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "{host}", "MASTER_ADDR": "{host}", "MASTER_PORT": "{port}",
}  # fmt: skip
_OPERATOR = {
    "MASTER_ADDR": "localhost", "MASTER_PORT": "{port}", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "{port}",
    "PET_NNODES": "1", "PET_NODE_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "PYTHONUNBUFFERED": "1",
}  # fmt: skip
_ADDRESS = {"MASTER_ADDR": "127.0.0.1"}
_EXPORTED = {**_ADDRESS, "MASTER_PORT": "{port}"}


def _with_few_descriptors() -> Iterator[Environment]:
    for count in _FEW:
        yield Environment(
            f"ulimit -n {count}", "B8", f"at most {count} descriptors", Job(Place(f"ulimit -n {count}"), _MAY_REFUSE)
        )
    yield Environment(
        "ulimit -Sn 48", "B8", "48 descriptors that may become 4,096", Job(Place("ulimit -Sn 48; ulimit -Hn 4096"))
    )


JOBS_BARE = (
    Environment("no numpy", "B6", "torch and the wheel, and no numpy", Job()),
    Environment(
        "no numpy, taskd off", "B6", "the script uses the SDK, taskd is not switched on", Job(wanted=Wanted(off=True))
    ),
    Environment("taskd run", "B6", "torchrun is left as it is", Job(Place(by_taskd=("taskd", "run")))),
    Environment(
        "LD_PRELOAD", "B7", "libtaskd.so is preloaded, as README shows",
        Job(Place('[[ ! -f $BARE_GATE ]] || export LD_PRELOAD=$BARE_GATE:$LD_PRELOAD')),
    ),
    Environment(
        "Debian 12", "B7", "a root file system of debootstrap with its own Python and nothing else",
        Job(Place(_CHROOT, _MOUNTS, torchrun=("/opt/bare/bin/python", *MODULE[1:]), rootfs=DEBIAN_12)),
    ),
    *_with_few_descriptors(),
    Environment("MASTER_ADDR", "B9", "exported on one node", Job(Place(env=_EXPORTED))),
    Environment(
        "MASTER_ADDR, --standalone", "B9", "the same with --standalone",
        Job(Place(env=_EXPORTED, options=("--standalone",))),
    ),
    Environment(
        "MASTER_ADDR, c10d", "B9", "the same with torch's c10d rendezvous",
        Job(Place(env=_ADDRESS, options=("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}"))),
    ),
    Environment(
        "--master-addr", "B9", "as an option of torchrun",
        Job(Place(options=("--nnodes=1", "--master-addr=127.0.0.1", "--master-port={port}"))),
    ),
    Environment(
        "Slurm", "B9", "the variables of a Slurm step, and the line of its pages",
        Job(Place(
            env=_SLURM,
            options=("--nnodes=1", "--rdzv-id=4711", "--rdzv-backend=c10d", "--rdzv-endpoint={host}:{port}"),
        )),
    ),
    Environment("training operator", "B9", "a Kubernetes job of one pod", Job(Place(env=_OPERATOR))),
    Environment(
        "/dev/shm of 1 MB", "B10", "shared memory is almost full from the start",
        Job(Place(_SHM.format("size=1m,mode=1777"), _MOUNTS), _WHY_COLD),
    ),
    Environment(
        "/dev/shm read-only", "B10", "shared memory can be read only",
        Job(Place(_SHM.format("ro"), _MOUNTS), _WHY_COLD),
    ),
    Environment("no /dev/shm", "B10", "/dev has no shm", Job(Place(_NO_SHM, _MOUNTS), _WHY_COLD)),
    Environment(
        "PYTHONPATH", "B10", "`pip install --target`: PYTHONPATH alone names the wheel", Job(Place(installed=TARGET))
    ),
    Environment("two copies", "B10", "the wheel beside torch, and again in PYTHONPATH", Job(Place(installed=TWICE))),
    Environment(
        "python -m", "B10", "`python -m torch.distributed.run`", Job(Place(torchrun=MODULE))
    ),
    Environment(
        "python -I", "B10", "an isolated interpreter for torchrun", Job(Place(torchrun=("python", "-I", *MODULE[1:])))
    ),
    Environment("PYTHONOPTIMIZE=2", "B10", "no asserts, no docstrings", Job(Place(env={"PYTHONOPTIMIZE": "2"}))),
    Environment(
        "PYTHONWARNINGS", "B11", "a deprecation is an error",
        Job(Place(env={"PYTHONWARNINGS": "error::DeprecationWarning"})),
    ),
    Environment(
        "read-only site-packages", "B10", "the installation can be read only",
        Job(Place('mount --bind "$BARE_VENV" "$BARE_VENV"; mount -o remount,bind,ro "$BARE_VENV"', _MOUNTS)),
    ),
)  # fmt: skip
