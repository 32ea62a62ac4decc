"""Let a killed process die that a cgroup keeps frozen: with cgroup v1 even SIGKILL waits until it is thawed."""

from contextlib import suppress
from pathlib import Path

_FREEZER = Path("/sys/fs/cgroup/freezer")


def thaw(pid: int) -> Path | None:
    """Thaw the freezer cgroup (v1) that a process is in; the cgroup if it was frozen and we were allowed to."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            state = _FREEZER / path.lstrip("/") / "freezer.state"
            if "freezer" in controllers.split(",") and state.exists() and state.read_text().strip() != "THAWED":
                state.write_text("THAWED")
                return state.parent
    return None
