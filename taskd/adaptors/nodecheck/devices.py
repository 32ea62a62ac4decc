"""The device of one check process: found, counted, and named; and the node's installed software for it.

Rules:

1. Nothing here computes. A device that hangs is left to the caller, who limits the time.
2. A node whose accelerator torch cannot use is a failure, not a node without one. A user who hides it on purpose has
   none.
"""

import contextlib
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import taskd
from taskd.config.process import environment
from taskd.errors import ProbeError

_HIDING: Final = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
_NODES: Final = {"cuda": "nvidia[0-9]*", "npu": "davinci[0-9]*"}
_BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
_SOURCE: Final = re.compile(r"\[(enforce fail at )?[^][\s]*\.(cc|cpp|h):\d+\] *")
_PORT: Final = re.compile(r"\]:\d+")
_FREE_SHARE: Final = 0.9
"""Share of an accelerator's memory that must be free. If less is free, somebody else uses it, or did."""
_DRIVERS: Final = ("/proc/driver/nvidia/version", "/usr/local/Ascend/driver/version.info")


@dataclass(frozen=True)
class Device:
    """One local rank's device."""

    kind: str
    index: int

    @property
    def torch(self) -> torch.device:
        """The device in torch's terms."""
        return torch.device("cpu") if self.kind == "cpu" else torch.device(self.kind, self.index)

    @property
    def backend(self) -> str:
        """Backend of its collectives."""
        return _BACKENDS[self.kind]

    @property
    def synchronize(self) -> Callable[[], object]:
        """Function that waits until the device has done all of its work."""
        return (lambda: None) if self.kind == "cpu" else getattr(torch, self.kind).synchronize

    def select(self) -> None:
        """Make it this thread's current device."""
        if self.kind != "cpu":
            getattr(torch, self.kind).set_device(self.index)

    def name(self) -> str:
        """Return the model's name."""
        return _cpu_model() if self.kind == "cpu" else str(getattr(torch, self.kind).get_device_name(self.index))

    def check_unused(self) -> None:
        """Raise `ProbeError` if somebody holds memory of it. To be called before this process does."""
        if self.kind == "cpu":
            return
        free_bytes, total_bytes = getattr(torch, self.kind).mem_get_info(self.index)
        if free_bytes < total_bytes * _FREE_SHARE:
            raise ProbeError(
                f"{(total_bytes - free_bytes) / 1e9:.1f} of {total_bytes / 1e9:.1f} GB of the memory of {self.torch} "
                "are in use before the check, expected nearly none: end what an earlier job has left there"
            )


def find(kind: str, index: int, local_world_size: int) -> Device:
    """Return a device by its number; `kind` "" is whatever there is. Raise `ProbeError` if it cannot be used."""
    chosen = kind or present()
    if chosen not in _BACKENDS:
        raise ProbeError(f"found device {chosen!r}, expected one of {', '.join(_BACKENDS)}")
    if chosen == "cpu":
        return Device("cpu", index)
    module = getattr(torch, chosen, None)
    if module is None or not module.is_available():
        raise ProbeError(f"no {chosen} device can be used: {_why_not(chosen)}")
    count = int(module.device_count())
    wanted = max(local_world_size, index + 1)
    if count < wanted:
        raise ProbeError(
            f"found {count} {chosen} devices, expected {wanted}, one for each local rank: one has fallen off the "
            f"bus, or {_HIDING[chosen]} hides it"
        )
    return Device(chosen, index)


def present() -> str:
    """Return the kind of device that this node has, even if torch cannot use it."""
    for kind in ("npu", "cuda"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return kind
    for kind, pattern in _NODES.items():
        hidden = environment().get(_HIDING[kind])
        built = torch.version.cuda is not None if kind == "cuda" else hasattr(torch, kind)
        if built and hidden not in ("", "-1") and any(Path("/dev").glob(pattern)):
            return kind
    return "cpu"


def _why_not(kind: str) -> str:
    module: Any = getattr(torch, kind, None)
    if module is None:
        return f"this torch ({torch.__version__}) was built without it"
    try:
        module.init()
    except (RuntimeError, AssertionError, ImportError) as error:
        return one_line(error)
    return f"torch {torch.__version__} sees none; look at the driver (nvidia-smi, npu-smi)"


def one_line(error: BaseException | str, most_chars: int = 240) -> str:
    """Return an error's text without C++'s additions: source places, ports that differ by rank, advice, the stack."""
    text = _SOURCE.sub("", str(error)).partition(" This is typically caused by")[0].strip()
    text = _PORT.sub("]", text).rstrip(".")
    first = " ".join(text.partition("\nException raised from")[0].split())
    first = first or (type(error).__name__ if isinstance(error, BaseException) else "")
    return first if len(first) <= most_chars else first[: most_chars - 1] + "…"


def versions(device: Device) -> dict[str, str]:
    """Return the versions that two nodes of one job should have in common."""
    found = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "taskd": taskd.__version__,
        "backend": _backend_version(device),
        "driver": _driver(),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "device": device.name(),
    }
    return {name: value for name, value in found.items() if value}


def _backend_version(device: Device) -> str:
    if device.backend == "nccl":
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return "nccl " + ".".join(map(str, version))
    if device.backend == "hccl":
        module = sys.modules.get("torch_npu")
        return f"hccl of torch_npu {getattr(module, '__version__', 'unknown')}"
    return f"gloo of torch {torch.__version__}"


def _driver() -> str:
    for path in map(Path, _DRIVERS):
        with contextlib.suppress(OSError, IndexError):
            return path.read_text(errors="replace").splitlines()[0].strip()
    return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "cpu model")))
    return next(named, "") or platform.machine()
