"""Programs under LD_PRELOAD=libtaskd.so: each must end, and print, as without it.

Rules:

1. Each program runs with `--version` in namespaces of its own: twice without the library and once with it. Programs
   that differ between the two runs without it are not compared.
2. The variables are those of README: TASKD_PROCESS_ENABLE is on.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bare.job import PROGRAMS, container
from tests.bare.stage import DEBIAN_11, DEBIAN_12, Environment, Found, Stage, Suite

_LIMIT_S = 240
_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts")
_OTHER_USER = 12348
_FOLDERS = "/bin /sbin /usr/bin /usr/sbin"
_EACH = PROGRAMS / "each.sh"
_HOST = "bash ls cat env date git perl awk sed grep tar gzip gcc ld make find xargs sort ps ip mount python3 node"
_SETUID = "/usr/bin/mount /usr/bin/umount /usr/bin/passwd /usr/bin/su /usr/bin/chfn /usr/bin/newgrp"


@dataclass(frozen=True)
class Image:
    """Every program of a root file system."""

    suite: Suite
    at_least: int

    def play(self, stage: Stage, folder: Path) -> Found:
        """Run the programs in the image, with the library and without."""
        root = stage.rootfs(self.suite)
        gate = stage.taskd.gate
        shell = f"""
            mount --bind {root} {root}
            mount -t tmpfs none {root}/tmp
            mkdir {root}/tmp/found
            cp {gate} {_EACH} {root}/tmp
            mount --bind {folder} {root}/tmp/found
            mount -o remount,bind,ro {root}
            mount -t proc proc {root}/proc
            exec chroot {root} "$@"
        """
        command = ["bash", "/tmp/each.sh", "/tmp/libtaskd.so", "/tmp/found"]
        return compared(_played(container(_NAMESPACES, shell, command), folder, f"$(ls -d {_FOLDERS})"), self.at_least)


@dataclass(frozen=True)
class Programs:
    """Programs of this machine. `make` builds further ones in a folder. `user`: the user that runs them."""

    names: str = ""
    source: str = ""
    compiler: tuple[str, ...] = ()
    package: str = ""
    options: tuple[str, ...] = ()
    user: int = 0

    def play(self, stage: Stage, folder: Path) -> Found:
        """Run the programs with the library and without."""
        folder.chmod(0o777)
        names = self.names
        if self.compiler:
            compiler = stage.tool(self.compiler[0], self.package)
            (folder / "program.c").write_text(self.source)
            subprocess.run(
                [compiler, *self.options, "-o", folder / "program", folder / "program.c"], check=True, timeout=60
            )
            names += f" {folder / 'program'}"
        gate = folder / "libtaskd.so"  # every user may read it there
        gate.write_bytes(stage.taskd.gate.read_bytes())
        gate.chmod(0o755)
        (folder / "each.sh").write_bytes(_EACH.read_bytes())
        switch = f'exec setpriv --reuid={self.user} --regid={self.user} --clear-groups "$@"' if self.user else ""
        command = ["bash", str(folder / "each.sh"), str(gate), str(folder)]
        return compared(_played(container(_NAMESPACES, switch, command), folder, names), len(names.split()))


def _played(command: list[str], folder: Path, names: str) -> list[dict[str, str]]:
    env = {"PATH": f"{os.defpath}:/usr/sbin:/sbin", "HOME": "/", "NAMES": names}
    done = subprocess.run(
        command,
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    found = folder / "found.txt"
    if done.returncode or not found.exists():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return list(_entries(found.read_bytes()))


def _entries(text: bytes) -> Iterator[dict[str, str]]:
    """Read the result of each.sh: a program's name, then status and output of three runs, each ended by a zero byte."""
    words = text.decode(errors="replace").split("\0")
    for start in range(0, len(words) - 4, 4):
        name, *runs = words[start : start + 4]
        yield dict(zip(("name", "without", "again", "with"), (name.strip(), *runs), strict=True))


def compared(entries: list[dict[str, str]], at_least: int) -> Found:
    """Return the programs that run otherwise under the library. Fewer programs than expected are a defect, too."""
    different = [one for one in entries if one["with"] != one["without"] and one["without"] == one["again"]]
    wrong = [f"{len(different)} of {len(entries)} programs run otherwise"] if different else []
    wrong += [f"{one['name']}: {_first_difference(one)}" for one in different[:3]]
    if len(entries) < at_least:
        wrong.append(f"only {len(entries)} programs ran, expected {at_least}")
    return wrong, {"programs": len(entries), "different": len(different)}


def _first_difference(one: dict[str, str]) -> str:
    lines = one["without"].splitlines()[1:]
    status, *printed = one["with"].splitlines()
    return next((line for line in printed if line not in lines), f"status {status}")[:200]


_C = '#include <stdio.h>\nint main(void) { puts("as always"); return 7; }\n'
GATES = (
    Environment("Debian 11 under LD_PRELOAD", "B7", "every program of its image, glibc 2.31", Image(DEBIAN_11, 300)),
    Environment("Debian 12 under LD_PRELOAD", "B7", "every program of its image, glibc 2.36", Image(DEBIAN_12, 300)),
    Environment("programs of this machine", "B7", "under LD_PRELOAD", Programs(_HOST)),
    Environment(
        "musl program", "B7", "a dynamic one, under LD_PRELOAD", Programs("", _C, ("musl-gcc",), "musl-tools")
    ),
    Environment(
        "static program", "B7", "under LD_PRELOAD", Programs("", _C, ("gcc",), "gcc", ("-static",))
    ),
    Environment("setuid programs", "B7", "of another user, under LD_PRELOAD", Programs(_SETUID, user=_OTHER_USER)),
)  # fmt: skip
