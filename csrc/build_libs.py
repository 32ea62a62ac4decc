"""Compile csrc/ into libtaskd.so and libtaskd_core.so. `python csrc/build_libs.py` builds them in the source tree.

Rules:

1. Both objects are plain shared libraries, not Python extensions: one wheel serves every Python 3 of a platform.
2. A library is linked under another name, checked, and moved into place. Processes that map the old one keep it.
3. A preloaded library that cannot be linked kills every process. So the gate must need nothing (`objects.py`), and it
   is tried on /bin/true and on Python. A library that fails is not shipped.
4. The core is compiled for the glibc that torch's wheels need, independent of the glibc of this machine (`held.h`).
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import build_box
import objects

CSRC = Path(__file__).resolve().parent
LIBS = Path("taskd/python/cython_api/libs")
BOX_MODULE = Path("taskd/runtime/_box.py")
GATE, CORE = "libtaskd.so", "libtaskd_core.so"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared")
SOURCES = {
    GATE: ("gate.c",),
    CORE: (
        "box.c", "notes.c", "beat.c", "clocks.c", "libraries.c", "gloo.c", "gloo_ops.c", "coll.c", "device_ops.c",
        "nccl_profiler.c", "binding.c", "death.c", "end.c", "frameless.c", "pulse.c", "look.c", "reader.c",
        "postmortem.c",
    ),
}  # fmt: skip
# nodelete: atfork and exit handlers and the beat thread point into the core for the rest of the process's life.
CORE_FLAGS = ("-fexceptions", "-pthread", f"-include{CSRC / 'held.h'}", "-Wl,-z,now", "-Wl,-z,nodelete", "-ldl")
# Leave out all that a compiler or a distribution adds by itself: start files, libc, checks of the stack and of copies.
GATE_FLAGS = ("-nostdlib", "-ffreestanding", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-Wl,-z,now")
EXTRA = {GATE: GATE_FLAGS, CORE: CORE_FLAGS}


def compile_library(name: str, target: Path) -> None:
    """Compile and link one library, or end the build with the compiler's message."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    sources = [str(CSRC / source) for source in SOURCES[name]]
    command = [*compiler, *FLAGS, f"-Wl,-soname,{name}", "-o", str(target), *sources, *EXTRA[name]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(f"no C compiler: {compiler[0]!r} was not found; install gcc, or set CC") from None
    if done.returncode:
        raise SystemExit(f"{name} does not compile: {shlex.join(command)}\n{done.stderr}")


def check_needs(gate: Path) -> None:
    """End the build if the gate needs anything from the program that loads it."""
    flaws = objects.gate_flaws(objects.read(gate))
    if flaws:
        raise SystemExit(f"{GATE} would not load everywhere: {'; '.join(flaws)}; look at what csrc/gate.c calls")


def check_harmless(gate: Path) -> None:
    """End the build if a process under the gate fails or writes to stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKD_")}
    environment["LD_PRELOAD"] = str(gate)
    for command in (["/bin/true"], [sys.executable, "-S", "-c", ""]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            raise SystemExit(f"{command} under {GATE} gave {done.returncode}, expected 0 and silence: {done.stderr}")


def build_libraries(folder: Path) -> None:
    """Compile and check both libraries and move them into `folder`: both or none."""
    folder.mkdir(parents=True, exist_ok=True)
    drafts = {name: folder / f".{name}.{os.getpid()}" for name in (CORE, GATE)}
    try:
        for name, draft in drafts.items():
            compile_library(name, draft)
        check_needs(drafts[GATE])
        check_harmless(drafts[GATE])
        for name, draft in drafts.items():
            draft.replace(folder / name)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def build(root: Path) -> None:
    """Build both libraries and the generated module into the package under `root`."""
    build_libraries(root / LIBS)
    build_box.write_module(root / BOX_MODULE)


if __name__ == "__main__":
    build(CSRC.parent)
