"""Kinds of fault by their error text: which part has to be replaced, if any.

Rules:

1. A rule is a regular expression that is searched for in the text. Of several that match, the one that was registered
   last decides. Later means more special, and the user's rules come after all of `BUILT_IN`.
2. A text that matches no rule has no kind (None). Nothing is guessed: a rule exists only if the text's author states
   the kind, or if the text leaves no doubt. The ladder of strategies handles all other texts by trial.
3. A kind is the first remedy and not the last: a fault that outlasts it goes on up the ladder.

Sources of the texts and of their remedies:

- gloo: the transport errors of `gloo/transport/tcp` and of ProcessGroupGloo, seen in torch 2.13; TCPStore likewise.
- NCCL: `ncclGetErrorString`; user guide, "Errors": a remote error or a system error requires a new communicator.
- HCCL: the device errors that ProcessGroupHCCL of torch_npu distinguishes; MindIO treats the two network ones as a
  retry. EI0002 and EI0006 are CANN's codes for a wait and for a socket that timed out.
- CUDA: the runtime API's `cudaError_t`: after these errors the process must be terminated and launched again. An
  uncorrectable ECC error is such an error, too: its memory is not given out again. A GPU that cannot do that fails
  again, and then the node is replaced.
- Xid: NVIDIA's "Analyzing Xid Errors with the Xid Catalog": restart the application, or reset the GPU or reboot (which
  a job cannot do). The lines are those of the kernel log. If a program's bug is as likely, the process is replaced.
- Out of memory: a new process begins with an allocator that is not fragmented and without the old one's leaks.
- Python: an error in the source text is the same on every machine. ImportError is not among them: a package may be
  missing on one node, or a file system may be slow.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class FaultKind(Enum):
    """Remedy that a fault requires. The values are the words of `taskd.register_fault`."""

    RETRY = "retry"
    """Transient: every process lives, and the step is done again."""
    PROCESS = "process"
    """The process is of no more use and is replaced."""
    NODE = "node"
    """The node is of no more use and is replaced."""
    FATAL = "fatal"
    """A bug of the job, which no recovery cures."""


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """Rule for an error text: if `pattern` matches it (`re.search`), the fault is of this kind."""

    pattern: str
    kind: FaultKind


def classify(cause: str, rules: tuple[ErrorPattern, ...]) -> FaultKind | None:
    """Return the kind of fault that `cause` indicates, or None. Of several rules that match, the last one decides."""
    return next((rule.kind for rule in reversed(rules) if re.search(rule.pattern, cause)), None)


_CONNECTIONS: Final = (
    r"Connection closed by peer",
    r"[Cc]onnection reset by peer",
    r"Application timeout caused pair closure",
    r"Timed out waiting \d+ms for \w+ operation",
    r"Gloo connectFullMesh failed",
    r"gloo/transport/.*(?:[Bb]roken pipe|Connect timeout|Read timeout|[Cc]onnection refused)",
    r"Connection was likely closed\. Did the remote server shutdown or crash\?",
    r"wait timeout after \d+ms, keys:",
    r"remote process exited or there was a network error|ncclRemoteError",
    r"unhandled system error|ncclSystemError",
    r"Watchdog caught collective operation timeout",
    r"NCCL communicator was aborted",
    r"HCCL OP RETRY FAILED|SUSPECT REMOTE ERROR",
    r"\bEI000[26]\b",
)
_TRANSIENT: Final = (
    r"DataLoader worker \(pid.*\) (?:exited unexpectedly|is killed by signal)",
    r"DataLoader timed out after",
    r"\[Errno \d+\] (?:Input/output error|Remote I/O error|Stale file handle)",
)
_PROCESS: Final = (
    r"device-side assert triggered",
    r"an illegal (?:memory access|instruction) was encountered",
    r"CUDA error: (?:misaligned address|unspecified launch failure|hardware stack error|the launch timed out)",
    r"unhandled cuda error|ncclUnhandledCudaError",
    r"uncorrectable ECC error encountered",
    r"UCE ERROR|HBM MULTI BIT ECC ERROR|SUSPECT MEM ERROR|HCCS LINK ERROR",
    r"\b(?:CUDA|HIP|NPU) (?:error: )?out of memory",
    r"DefaultCPUAllocator: can't allocate memory",
    r"\bXid \([^)]*\): (?:13|31|94)\b",
)
_NODE: Final = (
    r"\bXid \([^)]*\): (?:46|48|62|64|74|79|95|119|120|140)\b",
    r"\bXid \([^)]*\): 154\b.* to \w+ \((?:Drain and Reset|GPU Reset Required|Node Reboot Required)\)",
    r"GPU has fallen off the bus|GPU is lost",
    r"No space left on device",
    r"\[Errno \d+\] Read-only file system",
)
_SHARED_MEMORY: Final = (r"unable to [^<]*</torch_\w+>",)
"""Errors about torch's files in /dev/shm. No disk is full then, and a process's files there vanish with it."""
_FATAL: Final = (r"^(?:SyntaxError|IndentationError|TabError|NameError|UnboundLocalError)\b",)

BUILT_IN: Final = tuple(
    ErrorPattern(pattern, kind)
    for patterns, kind in (
        (_CONNECTIONS, FaultKind.RETRY),
        (_TRANSIENT, FaultKind.RETRY),
        (_PROCESS, FaultKind.PROCESS),
        (_NODE, FaultKind.NODE),
        (_SHARED_MEMORY, FaultKind.PROCESS),
        (_FATAL, FaultKind.FATAL),
    )
    for pattern in patterns
)
