"""The parts of environments: the wheel, the installations, and root file systems of other distributions.

Rules:

1. Each is made once, when the first thread needs it.
2. Root file systems stay in a cache for later runs. debootstrap fills a draft, which is renamed when it is complete.
3. A package that this machine lacks is installed by apt-get. The text of `UnavailableError` is apt-get's own output.
"""

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.bare.installation import Installation, build_wheel, make_installation

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskd-bare"
MIRROR = "http://deb.debian.org/debian"
_LIMIT_S = 900
Found = tuple[list[str], dict[str, Any]]
"""Defects, and facts for the line of JSON."""
T = TypeVar("T")


class UnavailableError(Exception):
    """This machine cannot make the environment. The text gives the reason."""


@dataclass(frozen=True)
class Suite:
    """A release of Debian, and its packages beyond the smallest set."""

    name: str
    packages: tuple[str, ...] = ()


DEBIAN_11, DEBIAN_12 = Suite("bullseye"), Suite("bookworm", ("python3",))


class Trial(Protocol):
    """A test that is tried in an environment."""

    def play(self, stage: "Stage", folder: Path) -> Found:
        """Try it, with all files in `folder`."""
        ...


@dataclass(frozen=True)
class Environment:
    """An environment. `item`: the item of the issue that requires it."""

    name: str
    item: str
    about: str
    trial: Trial


class Stage:
    """All parts of environments, below `root`. `extra`: packages beside torch, to separate causes."""

    def __init__(self, root: Path, extra: Sequence[str] = ()) -> None:
        self.root = root
        self._packages = ("torch", *extra)
        self._lock = threading.RLock()
        self._made: dict[str, Any] = {}

    def _once(self, name: str, make: Callable[[], T]) -> T:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            made: T = self._made[name]
            return made

    @property
    def wheel(self) -> Path:
        """The wheel of this checkout."""
        return self._once("wheel", lambda: build_wheel(self._folder("wheel")))

    @property
    def stock(self) -> Installation:
        """torch, and no taskd."""
        return self._once("stock", lambda: make_installation(self.root / "stock", self._packages))

    @property
    def taskd(self) -> Installation:
        """The wheel beside torch."""
        return self._once("taskd", lambda: make_installation(self.root / "taskd", self._packages, self.wheel))

    @property
    def alone(self) -> Installation:
        """The wheel without torch."""
        return self._once("alone", lambda: make_installation(self.root / "alone", [], self.wheel))

    @property
    def target(self) -> Installation:
        """A folder for PYTHONPATH with the wheel and its needs, as `pip install --target` makes it."""

        def make() -> Installation:
            whole = make_installation(self.root / "target-venv", [], self.wheel)
            folder = self.root / "target"
            shutil.copytree(whole.site_packages, folder)
            return Installation(folder)

        return self._once("target", make)

    def rootfs(self, suite: Suite) -> Path:
        """Return a root file system of its own distribution."""
        return self._once(f"rootfs-{suite.name}", lambda: _rootfs(suite))

    def tool(self, program: str, package: str) -> str:
        """Return a program of this machine. apt-get installs it if it is missing."""
        return self._once(f"tool-{program}", lambda: _tool(program, package))

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        return folder


def _rootfs(suite: Suite) -> Path:
    folder = CACHE / "-".join((suite.name, *suite.packages))
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(CACHE / "lock"):
        if folder.exists():
            return folder
        debootstrap = _tool("debootstrap", "debootstrap")
        draft = folder.with_name(f"{folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        packages = [f"--include={','.join(suite.packages)}"] if suite.packages else []
        _run([debootstrap, "--variant=minbase", *packages, suite.name, str(draft), MIRROR])
        draft.rename(folder)
    return folder


def _tool(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        _run(["apt-get", "update", "-qq"])
        _run(["apt-get", "install", "-y", "-qq", package])
        path = shutil.which(program)
    if path is None:
        raise UnavailableError(f"apt-get has installed {package}, and there is no {program}")
    return path


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock that keeps other runs of this script out."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise UnavailableError(
            f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}"
        )
