"""Run a command to which the kernel refuses some system calls, as a container's seccomp profile does.

    python refuse.py ERROR NAME[,NAME…]|newer-than-NUMBER COMMAND…

It needs no package. The filter stays with the command and with all its children.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {
        "ptrace": 101, "kcmp": 312, "memfd_create": 319, "userfaultfd": 323, "process_vm_readv": 310,
        "process_vm_writev": 311, "perf_event_open": 298, "bpf": 321, "name_to_handle_at": 303,
        "pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436, "pidfd_getfd": 438,
        "io_uring_setup": 425,
    },
    "aarch64": {
        "ptrace": 117, "kcmp": 272, "memfd_create": 279, "userfaultfd": 282, "process_vm_readv": 270,
        "process_vm_writev": 271, "perf_event_open": 241, "bpf": 280, "name_to_handle_at": 264,
        "pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436, "pidfd_getfd": 438,
        "io_uring_setup": 425,
    },
}  # fmt: skip
_LOAD, _EQUAL, _GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def build_filter(error: int, names: str) -> bytes:
    """Return the BPF program: load the call's number, compare it, refuse or allow."""

    def one(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    lines = [one(_LOAD, 0)]
    if names.startswith("newer-than-"):
        lines += [one(_GREATER, int(names.rpartition("-")[2]), 0, 1), one(_RETURN, _ERRNO | error)]
    else:
        table = NUMBERS[platform.machine()]
        for name in names.split(","):
            lines += [one(_EQUAL, table[name], 0, 1), one(_RETURN, _ERRNO | error)]
    return b"".join([*lines, one(_RETURN, _ALLOW)])


def main() -> None:
    """Install the filter and become the command."""
    program = build_filter(getattr(errno, sys.argv[1]), sys.argv[2])
    libc = ctypes.CDLL(None, use_errno=True)
    given = _Program(len(program) // 8, program)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(given), 0, 0):
        sys.exit(f"refuse.py: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
