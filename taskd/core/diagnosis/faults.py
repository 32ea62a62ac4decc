"""What kind of fault an error text tells of: what has to be replaced, if anything.

Rules:

1. A rule is a regular expression that is searched for in the text. Of several that match, the one that was registered
   last decides: later means more special, and the user's rules come after all of `BUILT_IN`.
2. A text that no rule knows has no kind (None). Nothing is guessed: a kind stands here only if whoever writes the text
   says so, or if the text leaves no doubt. The ladder of strategies finds out about the others by trying.
3. A kind is the first thing to do and not the last: what fails at it goes on up the ladder.

Sources of the texts and of what they ask for:

- gloo: the transport errors of `gloo/transport/tcp` and of ProcessGroupGloo, seen in torch 2.13; TCPStore likewise.
- NCCL: `ncclGetErrorString`; user guide, "Errors": a remote error or a system error asks for a new communicator.
- HCCL: the device errors that ProcessGroupHCCL of torch_npu tells apart; MindIO treats the two network ones as a retry.
  EI0002 and EI0006 are CANN's codes for a wait and for a socket that timed out.
- CUDA: the runtime API's `cudaError_t`: after these errors the process has to be terminated and launched again. That
  holds for an uncorrectable ECC error too, after which the memory is given out no more; a GPU that cannot do that
  fails again, and then the node is replaced.
- Xid: NVIDIA's "Analyzing Xid Errors with the Xid Catalog": restart the application, or reset the GPU or reboot (which
  a job cannot do). The lines are those of the kernel log. Where a program's bug is as likely, the process is replaced.
- Out of memory: a new process begins with an allocator that is not fragmented and without what the old one leaked.
- Python: an error that tells of the source text is the same on every machine. (ImportError is not among them: a package
  may be missing on one node, or a file system be slow.)
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class FaultKind(Enum):
    """What a fault asks for. The values are the words of `taskd.register_fault`."""

    RETRY = "retry"
    """Transient: every process lives, the step is done again."""
    PROCESS = "process"
    """The process is of no more use and is replaced."""
    NODE = "node"
    """The node is of no more use and is replaced."""
    FATAL = "fatal"
    """A bug of the job: it is not recovered from."""


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """A text that matches `pattern` (`re.search`) tells of a fault of this kind."""

    pattern: str
    kind: FaultKind


def classify(cause: str, rules: tuple[ErrorPattern, ...]) -> FaultKind | None:
    """The kind of fault that `cause` tells of, or None. Of several rules that match, the last one decides."""
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
"""torch's files in /dev/shm: when that is full, no disk is meant. What a process holds there goes with it."""
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
