"""The program of every rank of the ladder: `examples/digits_ddp.py` with counted steps, one of which may fail.

    rank.py FOLDER [arguments of the example]

Each process appends a byte to `FOLDER/passes-RANK-PID` for each step that it begins, whatever its number of
micro-batches. So the files show how far the job is and how often a step was done again. `LADDER_FAILS=RANK:PASS` has
one rank raise the error of a broken connection, once in the job's life.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch.nn.functional

import taskd

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits_ddp.py"
folder, arguments = Path(sys.argv[1]), sys.argv[2:]
rank = os.environ["RANK"]
node = os.uname().nodename
passes = (folder / f"passes-{rank}-{node}-{os.getpid()}").open("ab", buffering=0)
failing_rank, _, failing_pass = os.environ.get("LADDER_FAILS", "").partition(":")
computed = torch.nn.functional.cross_entropy
begun = torch.optim.Optimizer.zero_grad


def counted(optimizer: torch.optim.Optimizer, *given: Any, **named: Any) -> None:
    """Write a byte at the first call of each step."""
    passes.write(b".")
    begun(optimizer, *given, **named)


def failing(*given: Any, **named: Any) -> Any:
    """Return the loss, or raise an error."""
    if rank == failing_rank and passes.tell() == int(failing_pass):
        try:
            (folder / "failed").touch(exist_ok=False)
        except FileExistsError:
            return computed(*given, **named)
        raise ConnectionResetError("the ladder has broken a connection")
    return computed(*given, **named)


taskd.register_fault("ConnectionResetError", "retry")
torch.nn.functional.cross_entropy = failing
torch.optim.Optimizer.zero_grad = counted  # type: ignore[assignment,method-assign]
sys.argv = [str(EXAMPLE), *arguments]
runpy.run_path(str(EXAMPLE), run_name="__main__")
