"""Two ranks. Rank 1 waits to be killed; its successor and rank 0 meet and end. Every wait is on a FIFO."""

import os
import signal
import sys
from pathlib import Path

folder = Path(sys.argv[1])
rank, incarnation = os.environ["RANK"], os.environ["TASKD_INCARNATION"]
line = f"rank {rank} incarnation {incarnation} as {__name__} of {sys.argv[1:]}"
print(f"{line} on stdout\n", end="", flush=True)  # in one write: torchrun passes -u
print(f"{line} on stderr\n", end="", file=sys.stderr, flush=True)
with (folder / "lives").open("a") as lives:
    error_file = os.environ["TORCHELASTIC_ERROR_FILE"]
    lives.write(
        f"{rank} {incarnation} {os.getpid()} {os.getppid()} {os.getpgrp()} {'torch' in sys.modules} {error_file}\n"
    )

if sys.argv[2] == "hold":
    with (folder / f"up-{rank}").open("w"):
        signal.pause()
if sys.argv[2] == "fail" and rank == "1":
    raise ValueError("rank 1 fails")
if sys.argv[2] == "stock" and incarnation == "0":  # rank 0 has reported that it lives before rank 1 can be killed
    (folder / "begun").open("w" if rank == "0" else "r").close()
if rank == "1" and incarnation == "0":
    with (folder / "up").open("w"):
        signal.pause()
if rank == "1":
    (folder / "back").open("w").close()
else:
    (folder / "back").open().close()
print(f"rank {rank} incarnation {incarnation} ends\n", end="", flush=True)
