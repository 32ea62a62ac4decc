"""Ranks that send messages to the agent while torchrun's main thread still starts others."""

import socket
import subprocess
import threading
import time

from taskd.runtime.agent.agent import NodeAgent
from taskd.wire.codec import encode
from taskd.wire.messages import Modules, Order, Stage
from tests.launch import Launcher
from tests.runtime.host import Host
from tests.runtime.local import LIMIT_S, start
from tests.runtime.scripted import IDENTITY, ScriptedManager, stages


def await_line(launcher: Launcher, process: "subprocess.Popen[bytes]", line: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while line not in launcher.output(process).split():
        assert time.monotonic() < end_s
        threading.Event().wait(0.02)


def test_a_rank_that_connects_before_torchrun_has_started_all_is_known(
    agent: NodeAgent,
    host: Host,
    manager: ScriptedManager,
    launcher: Launcher,
) -> None:
    """torchrun restarts the group. Its main thread still records the start while the agent reads a rank's messages."""
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    fresh = Host()
    fresh.close()
    for rank in Host.local_ranks:
        host.processes[rank].kill()
        env = agent.worker_environment(rank)
        numbers = (rank, env["TASKD_INCARNATION"], env["TASKD_GENERATION"])
        fresh.processes[rank] = start(launcher, "early_rank.py", env["TASKD_AGENT_SOCKET"], *numbers)
        await_line(launcher, fresh.processes[rank], "started")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:  # the agent reads messages in order
        link.connect(env["TASKD_AGENT_SOCKET"])
        link.send(encode(Modules(names=("torch",))))
        until_s = time.monotonic() + LIMIT_S
        while not manager.modules:
            assert time.monotonic() < until_s
            manager.listen(0.05)
    agent.started(fresh, IDENTITY)
    manager.until(lambda status: stages(status) == [Stage.TRAINING, Stage.TRAINING])
    manager.say(Order.PAUSE, 2, 1, 1)
    for process in fresh.processes:
        await_line(launcher, process, "Pause")
