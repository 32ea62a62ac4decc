"""The lines of a job on several nodes, as a user types them from the pages.

Rules:

1. A scene reads its lines from README.md, `examples/train_start.sh` and docs/strategies/recover.md. Only numbers,
   addresses and the script are its own.
2. The words `taskd`, `torchrun` and `python` are those of this environment, by PATH.
3. `MACHINE` are the variables of the machine that several nodes share here, and of scripts that import `tests`. No page
   needs to show them.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.job import ROOT, no_outer_job
from tests.harness.pages import FENCE

MASTER_PORT: Final = 29500
MACHINE: Final = frozenset({"PATH", "OMP_NUM_THREADS", "PYTHONPATH"})
_README: Final = (ROOT / "README.md").read_text()
_START: Final = (ROOT / "examples" / "train_start.sh").read_text()
_RECOVER: Final = (ROOT / "docs" / "strategies" / "recover.md").read_text()


def machine() -> dict[str, str | None]:
    """Return an environment without an outer job: one thread for each process, and this environment's commands."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**no_outer_job(), "PATH": path, "OMP_NUM_THREADS": "1"}


def manager(nodes: int, procs_per_node: int) -> list[str]:
    """Return the README's line that starts the manager, in the foreground."""
    line = _block(_README, "taskd manager").partition("&")[0]
    numbers = {"--nodes": str(nodes), "--procs-per-node": str(procs_per_node)}
    words = shlex.split(line)
    assert numbers.keys() <= set(words), f"the README starts the manager with other options: {line}"
    return [numbers.get(before, word) for before, word in zip(["", *words], words, strict=False)]


def manager_program(nodes: int, procs_per_node: int) -> str:
    """Return `examples/manager.py` for a job of this size."""
    text = (ROOT / "examples" / "manager.py").read_text()
    for name, number in (("node_nums", nodes), ("proc_per_node", procs_per_node)):
        text, count = re.subn(rf"^{name}=\d+", f"{name}={number}", text, flags=re.MULTILINE)
        assert count == 1, f"manager.py sets {name} {count} times"
    return text


def static(
    program: Sequence[str | Path], *, node_rank: int, nnodes: int, procs_per_node: int, master_addr: str,
    options: Sequence[str] = (),
) -> list[str | Path]:  # fmt: skip
    """Return the README's lines for one node. `options` are further ones of torchrun."""
    (arguments,) = re.findall(r"^DISTRIBUTED_ARGS=.*$", _START, re.MULTILINE)
    given = f"GPUS_PER_NODE={procs_per_node} NNODES={nnodes} NODE_RANK={node_rank}"
    master = f"MASTER_ADDR={master_addr} MASTER_PORT={MASTER_PORT}"
    return _shell([given, master, arguments], _block(_README, "DISTRIBUTED_ARGS"), program, options)


def dynamic(
    program: Sequence[str | Path], *, nnodes: str, procs_per_node: int, manager_host: str, store_host: str,
    options: Sequence[str] = (),
) -> list[str | Path]:  # fmt: skip
    """Return the lines of docs/strategies/recover.md for a node whose torchruns meet by c10d. `options` come last."""
    given = f"HOST0={manager_host} HOST1={store_host} NNODES={nnodes} GPUS_PER_NODE={procs_per_node}"
    return _shell([given], _block(_RECOVER, "c10d"), program, options)


def _block(page: str, word: str) -> str:
    """Return the one block of commands on a page that contains a word."""
    (block,) = [block for block in FENCE.findall(page) if word in block]
    return str(block)


def _shell(given: Sequence[str], lines: str, program: Sequence[str | Path], options: Sequence[str]) -> list[str | Path]:
    """Return a shell that becomes the torchrun of these lines, with this program in place of `train.py`."""
    assert len(re.findall(r"^torchrun .* train\.py$", lines, re.MULTILINE)) == 1, lines
    typed = re.sub(r"^torchrun (.*) train\.py$", r'exec torchrun \1 $OPTIONS "$@"', lines, flags=re.MULTILINE)
    return ["bash", "-c", "\n".join([*given, f"OPTIONS={shlex.quote(' '.join(options))}", typed]), "node", *program]
