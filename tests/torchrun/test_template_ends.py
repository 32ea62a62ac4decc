"""After an error, a template or a standby without a rank ends.

Each call of their code fails in turn. The script records whether it ran with a rank or without one.
"""

import inspect
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from taskd.adaptors.torchrun import standby
from taskd.adaptors.torchrun.children import AdoptedProcess, has_ended
from taskd.adaptors.torchrun.template_process import TemplateProcess
from taskd.config.process import environment
from taskd.runtime.agent.given import order_to_become
from taskd.runtime.agent.ports import Command, Logs
from taskd.wire.codec import BadFrameError, encode
from taskd.wire.messages import Hello
from taskd.wire.standbys import Become, Fork, Prepare
from tests.leaks import set_subreaper
from tests.torchrun.nursery import collect_children_of
from tests.torchrun.scripted import DEADLINE_S, LocalSocket, hear

ROOT = Path(__file__).resolve().parents[2]
STANDBY: Final = standby.__name__
START: Final = "taskd.adaptors.torchrun.start"
SCRIPT = """
import os
os.mkdir(os.environ["RAN"] + ("/as-rank" if "RANK" in os.environ else "/alone"))
"""
BREAKS = """
import importlib, os
text = os.environ.get("BREAKS")
if text == "sitecustomize":
    open(os.environ["RAN"] + "/fired", "w").close()
    raise SystemExit(1)
error = {"SystemExit": SystemExit, "OSError": OSError}[os.environ.get("ERROR", "OSError")]
import taskd.adaptors.torchrun.standby
for name in ("DEFAULT_MODULES", "IN_RANK"):
    setattr(taskd.adaptors.torchrun.standby, name, ())  # torch is not imported
taskd.adaptors.torchrun.standby._exercise = lambda: None
taskd.adaptors.torchrun.standby._prepare_checks = lambda: None
if text:
    module, name = text.split(":")
    place = importlib.import_module(module)
    *parts, last = name.split(".")
    for part in parts:
        place = getattr(place, part)
    def broken(*_, **__):
        open(os.environ["RAN"] + "/fired", "w").close()
        raise error("broken by the test")
    setattr(place, last, broken)
"""


def calls() -> Iterator[str]:
    """Yield all functions of the module whose code a template and a standby run, and the system's that it calls."""
    for name, value in vars(standby).items():
        if inspect.isfunction(value) and value.__module__ == STANDBY and name != "_exercise":
            yield f"{STANDBY}:{name}"
    for name, value in vars(standby.Template).items():
        if inspect.isfunction(value):
            yield f"{STANDBY}:Template.{name}"
    text = inspect.getsource(standby)
    for module in ("os", "signal", "fcntl", "gc", "select", "socket"):
        for name in sorted(set(re.findall(rf"(?<![\w.]){module}\.(\w+)\(", text)) - {"_exit"}):
            yield f"{module}:{name}"
    yield from (f"{START}:_be_template", f"{START}:prepare_rank")
    yield "taskd.config.worker:TemplateConfig.from_environment"
    yield "sitecustomize"  # the machine's own, which may leave by SystemExit


CALLS: Final = tuple(calls())
UNUSED: Final = frozenset((f"{STANDBY}:probe",))
"""Calls that this agent gives no occasion for."""


class Agent:
    """Acts as an agent with one template: has it fork a standby, and makes that a rank."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._local = LocalSocket(folder / "agent.sock")
        self._process = TemplateProcess(Command((str(folder / "script.py"),), python=True))
        self._links: list[socket.socket] = []
        self._template = 0
        self._rank = 0

    def play(self) -> int:
        """Wait until the template or its fork has ended. Return the rank's status, or -1 if there was no rank yet."""
        self._template = template = self._process.start({**self._env, **self._local.environment()})
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            if self._rank == template and (released := self._process.release(template)) is not None:
                return released.wait(DEADLINE_S)
            if has_ended(template) or self._process.reap():
                return -1
            if self._rank and (status := AdoptedProcess(self._rank).poll()) is not None:
                return status
            self._serve()
        raise AssertionError("neither the template nor the rank has ended")

    def _serve(self) -> None:
        sources: list[LocalSocket | socket.socket] = [self._local, *self._links]
        for link in select.select(sources, [], [], 0.02)[0]:
            if isinstance(link, LocalSocket):
                self._links.append(link.take())
                continue
            try:
                self._answer(link, hear(link))
            except (OSError, BadFrameError):  # it has ended
                self._links.remove(link)
                link.close()

    def _answer(self, link: socket.socket, hello: Hello) -> None:
        if hello.role == "template" and hello.threads <= 1:
            link.send(encode(Fork(count=hello.threads)))
            return
        if hello.role == "standby":
            link.send(encode(Prepare()))
        link.send(encode(self._become()))
        self._rank = hello.pid

    def _become(self) -> Become:
        out = str(self._folder / "out")
        env = {**self._env, "RANK": "0"}
        return order_to_become(("script.py",), env, Logs(out, out, None), bytes(self._folder))

    def close(self) -> None:
        self._process.close()
        if self._template:
            collect_children_of(self._template)
        for link in self._links:
            link.close()
        self._local.close()
        set_subreaper(False)


@contextmanager
def agent(folder: Path, **variables: str) -> Iterator[Agent]:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "sitecustomize.py").write_text(BREAKS)
    env = {
        **environment(),
        "PYTHONPATH": f"{ROOT}:{folder}",
        "OMP_NUM_THREADS": "1",
        "RAN": str(folder),
        **variables,
    }
    one = Agent(folder, env)
    try:
        yield one
    finally:
        one.close()


def test_a_rank_runs_the_script(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        assert one.play() == 0
    assert (tmp_path / "as-rank").exists()
    assert not (tmp_path / "alone").exists()


@pytest.mark.parametrize(("call", "error"), list(zip(CALLS, cycle(("OSError", "SystemExit")), strict=False)))
def test_what_fails_ends_the_process(tmp_path: Path, call: str, error: str) -> None:
    with agent(tmp_path, BREAKS=call, ERROR=error) as one:
        status = one.play()
    assert (tmp_path / "fired").exists() == (call not in UNUSED)
    assert not (tmp_path / "alone").exists()
    assert (status == 0) == (tmp_path / "as-rank").exists()


def test_there_are_as_many_calls_as_the_code_has() -> None:
    assert len(CALLS) >= 40, CALLS
