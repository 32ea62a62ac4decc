"""Kinds of fault: each known text has one, the newest rule decides, and nothing is guessed."""

import pytest

from taskd.core.diagnosis.faults import BUILT_IN, ErrorPattern, FaultKind, classify

RETRY = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [::1]:40996",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Read error [127.0.0.1]:3: Connection reset by peer",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:420] writev [127.0.0.1]:3: Broken pipe",
    "RuntimeError: [../gloo/transport/tcp/buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
    "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Application timeout caused pair closure",
    "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
    "DistNetworkError: Failed to recv. Connection was likely closed. Did the remote server shutdown or crash?",
    "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/0",
    "DistBackendError: NCCL error in: NCCLUtils.hpp:275, remote process exited or there was a network error, NCCL",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    "DistBackendError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "DistBackendError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)",
    "DistBackendError: NCCL communicator was aborted on rank 3.",
    "RuntimeError: DataLoader timed out after 30 seconds",
    "RuntimeError: The Inner error is reported as above. EI0006: [PID: 176930] Getting socket times out.",
    "RuntimeError: HCCL OP RETRY FAILED, error code is 507904",
    "RuntimeError: NPU function error: SUSPECT REMOTE ERROR, error code is 507057",
    "RuntimeError: DataLoader worker (pid(s) 4242) exited unexpectedly",
    "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. ",
    "OSError: [Errno 5] Input/output error: '/data/shard-7'",
    "OSError: [Errno 116] Stale file handle",
)
PROCESS = (
    "RuntimeError: CUDA error: device-side assert triggered",
    "AcceleratorError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: unspecified launch failure",
    "DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
    "RuntimeError: UCE ERROR, time us= 6767. HBM MULTI BIT ECC ERROR",
    "NVRM: Xid (PCI:0000:06:00): 31, pid=12, name=python, Ch 00000008, MMU Fault",
    "NVRM: Xid (PCI:0000:06:00): 94, pid=12, Contained: SM (0x1)",
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_12_3_4>: No space left on device (28)",
)
NODE = (
    "NVRM: Xid (PCI:0000:c6:00): 79, pid=1101234, name=nvc:[driver], GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:c6:00): 95, pid=12, Uncontained: LTC TAG",
    "NVRM: Xid (PCI:0000:c6:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered; NVRM: Xid (PCI:0000:c6:00): 48, pid=1",
    "NVMLError_GpuIsLost: GPU is lost",
    "OSError: [Errno 28] No space left on device: '/scratch/x'",
    "OSError: [Errno 30] Read-only file system: '/scratch/x'",
)
FATAL = (
    "SyntaxError: invalid syntax (model.py, line 3)",
    "IndentationError: unexpected indent",
    "NameError: name 'optimiser' is not defined",
    "UnboundLocalError: cannot access local variable 'loss'",
)
UNKNOWN = (
    "",
    "exit code 1",
    "signal 9 (SIGKILL)",
    "ImportError: cannot import name 'x'",
    "ModuleNotFoundError: No module named 'apex'",
    "KeyError: 'lr'",
    "RuntimeError: shape '[3]' is invalid for input of size 4",
    "RuntimeError: the NameError: handler failed",
    "RuntimeError: [enforce fail at ../gloo/transport/tcp/pair.cc:525] op.preamble.nbytes <= op.nbytes. 4 vs 8",
    "NVRM: Xid (PCI:0000:06:00): 63, pid=1896, Row Remapper: New row marked for remapping",
    "NVRM: Xid (PCI:0000:06:00): 790, pid=1",
    "NVRM: Xid (PCI:0000:c6:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
    "FileNotFoundError: [Errno 2] No such file or directory: 'Input'",
)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (kind, cause)
        for kind, causes in (
            (FaultKind.RETRY, RETRY),
            (FaultKind.PROCESS, PROCESS),
            (FaultKind.NODE, NODE),
            (FaultKind.FATAL, FATAL),
            (None, UNKNOWN),
        )
        for cause in causes
    ],
)
def test_what_is_known_of_a_text(kind: FaultKind | None, cause: str) -> None:
    assert classify(cause, BUILT_IN) is kind


@pytest.mark.parametrize("rule", BUILT_IN, ids=lambda rule: rule.pattern)
def test_each_rule_has_a_text_that_it_alone_explains(rule: ErrorPattern) -> None:
    """Without the rule, some text of its kind would be unknown or of a different kind."""
    texts = {FaultKind.RETRY: RETRY, FaultKind.PROCESS: PROCESS, FaultKind.NODE: NODE, FaultKind.FATAL: FATAL}
    others = tuple(other for other in BUILT_IN if other is not rule)
    assert any(classify(text, others) is not rule.kind for text in texts[rule.kind])


def test_the_newest_rule_decides() -> None:
    rules = (ErrorPattern("quota", FaultKind.RETRY), ErrorPattern("disk quota", FaultKind.NODE))
    assert classify("OSError: disk quota", rules) is FaultKind.NODE
    assert classify("OSError: disk quota", rules[::-1]) is FaultKind.RETRY
    assert classify("OSError: network quota", rules) is FaultKind.RETRY


def test_a_users_rule_comes_before_the_built_in_ones() -> None:
    text = "OSError: [Errno 28] No space left on device"
    assert classify(text, (*BUILT_IN, ErrorPattern("No space", FaultKind.FATAL))) is FaultKind.FATAL
