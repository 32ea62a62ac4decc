"""Cost of the shim, call by call.

    python -m benchmarks.shim --json

- `clock_ns`: one reading of the clock, the floor. A write needs one reading, a note two.
- `write_ns`: a record of a worker's phase, with its time. `note_ns`: one operation in the ring, begun and ended.
- `nccl_note_ns`, `gloo_note_ns`: additional time of a collective through its hooks (communicator found, number, bytes,
  begin and end). The library behind the hooks does nothing, so nothing hides the cost. With gloo, a collective is the
  making of a buffer, the collective, and its first transfer. `notes_within_1_us`: both are within that bound.
- `constructor_us`: the preloaded gate in a process in which it is inert (see `constructor.py`).
- `attach_us`: a worker's attachment to its box: beat thread, signal chain, unwinder. The least of all processes counts,
  since the new thread waits for a core on a busy machine.
- `beat_us`: processor time of the native thread per beat, with a main thread that runs Python and answers.
  `beat_share`: that of all beats as a share of one core.

Calls are timed in batches of 1000 within one process. A figure is the median of `--rounds` batches, then of `--repeats`
processes, with and without the shim in turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.constructor import constructor_us
from benchmarks.job import ROOT
from taskd.runtime.box.blackbox import Box, library_path

_SOURCE = ROOT / "benchmarks" / "scripts" / "shim_calls.c"
_BOUND_NS = 1000
_WORKER = """
import sys, time
from pathlib import Path
from taskd.runtime.box.recorder import Recorder
Recorder().attach(Path(sys.argv[1]), 0, 0)
print("up", flush=True)
while True:
    sum(range(10000))
"""


def build(folder: Path) -> tuple[Path, Path]:
    """Compile the program and the library of callers; return both paths."""
    compiler = os.environ.get("CC", "cc").split()
    library, caller, program = folder / "libdone.so", folder / "libcaller.so", folder / "program"
    shared: list[str | Path] = [*compiler, "-O2", "-shared", "-fPIC", _SOURCE]
    subprocess.run([*shared, "-DLIBRARY", "-o", library], check=True)
    subprocess.run([*shared, "-DCALLER", "-o", caller, library, f"-Wl,-rpath,{folder}"], check=True)
    subprocess.run([*compiler, "-O2", _SOURCE, "-o", program, "-ldl"], check=True)
    return program, caller


def run(program: Path, caller: Path, rounds: int, *, hooked: bool) -> dict[str, float]:
    """Run one process; return the nanoseconds of each kind of call."""
    command: list[str | Path] = [program, caller, str(rounds)]
    box = None
    if hooked:
        box = Box.create(Path("/dev/shm") / f"taskd-benchmark-{os.getpid()}")
        command += [library_path(), box.path]
    try:
        lines = subprocess.check_output(command, text=True).splitlines()
    finally:
        if box is not None:
            box.close()
            box.unlink()
    return {name: float(value) for name, value in map(str.split, lines)}


def _beats(pid: int) -> float:
    """Return the processor time of a process's native thread, in seconds."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "taskd-beat":
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    raise SystemExit(f"process {pid} has no thread called taskd-beat, expected one after an attach")


def measure_beat(seconds: float) -> tuple[float, float]:
    """Return the microseconds of a beat, and the share of a core that all beats take."""
    box = Box.create(Path("/dev/shm") / f"taskd-benchmark-{os.getpid()}")
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, box.path], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        begun, beats, used = time.monotonic(), box.read().native_count, _beats(worker.pid)
        time.sleep(seconds)
        took, counted, spent = time.monotonic() - begun, box.read().native_count - beats, _beats(worker.pid) - used
    finally:
        worker.kill()
        worker.communicate()
        box.close()
        box.unlink()
    return spent / max(counted, 1) * 1e6, spent / took


def main() -> int:
    """Print the figures; return 1 if a note takes longer than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--beat-seconds", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program, caller = build(Path(folder))
        pairs = [
            (run(program, caller, args.rounds, hooked=True), run(program, caller, args.rounds, hooked=False))
            for _ in range(args.repeats)
        ]
    hooked = {name: statistics.median(one[name] for one, _ in pairs) for name in pairs[0][0]}
    plain = {name: statistics.median(one[name] for _, one in pairs) for name in pairs[0][1]}
    beat_us, beat_share = measure_beat(args.beat_seconds)
    notes = {f"{name}_note_ns": hooked[name] - plain[name] for name in ("nccl", "gloo")}
    within = max(notes.values()) <= _BOUND_NS
    result = {
        "clock_ns": hooked["clock"],
        "write_ns": hooked["write"],
        "note_ns": hooked["note"],
        **notes,
        "constructor_us": constructor_us(),
        "attach_us": min(one["attach"] for one, _ in pairs) / 1000,
        "beat_us": beat_us,
        "beat_share": beat_share,
    }
    rounded: dict[str, float | bool] = {
        name: round(value, 6) if name == "beat_share" else round(value, 1) for name, value in result.items()
    }
    rounded["notes_within_1_us"] = within
    print(json.dumps(rounded) if args.json else "\n".join(f"{name}: {value}" for name, value in rounded.items()))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
