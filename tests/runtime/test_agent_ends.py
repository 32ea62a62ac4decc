"""The agent's loop when torchrun ends its ranks, and when the agent itself ends."""

import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from taskd.config.agent import AgentConfig
from taskd.runtime.agent.agent import NodeAgent
from taskd.wire.kinds import LocalRank
from taskd.wire.messages import Order, Stage
from tests.runtime.host import Host
from tests.runtime.scripted import IDENTITY, LIMIT_S, STORE, ScriptedManager, stages


def test_leaving_is_told_and_nothing_started_any_more(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    manager.until(lambda status: True)
    agent.stopping()
    assert manager.until(lambda status: status.leaving).leaving
    host.processes[0].kill()
    manager.until(lambda status: status.ranks[0].stage is Stage.DEAD)
    manager.say(Order.PAUSE, 1, 1, 0)
    manager.until(lambda status: status.generation == 1)
    agent.stop()
    agent.stop()
    assert not any(call.startswith("spawn") for call in host.calls)


def test_an_end_that_torchrun_was_just_collecting_is_in_the_last_report(
    agent: NodeAgent, host: Host, manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of torchrun had reaped the process but not yet recorded the status when the agent asked for it."""
    asked, known = threading.Event(), host.exit_status
    manager.until(lambda status: True)

    def exit_status(local_rank: LocalRank) -> int | None:
        status = known(local_rank)
        asked.set()
        return status

    monkeypatch.setattr(host, "exit_status", exit_status)
    with host.processes[0]._waitpid_lock:  # type: ignore[attr-defined]
        os.kill(host.pid(LocalRank(0)), signal.SIGKILL)
        assert asked.wait(LIMIT_S)
    agent.stopping()
    agent.stop()
    while manager.socket.poll(0.5):
        manager.listen(0.0)
    assert stages(manager.heard[-1])[0] is Stage.DEAD


def test_a_rank_that_torchrun_ends_has_not_failed(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    """Only the rank that died before reports a fault."""
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    host.processes[1].kill()
    manager.until(lambda status: status.ranks[1].stage is Stage.DEAD)
    agent.stopping()
    host.processes[0].terminate()
    manager.until(lambda status: status.ranks[0].stage is Stage.DEAD)
    agent.stop()
    manager.listen(0.0)
    told = [rank for evidence_report in manager.evidence_reports for rank in evidence_report.evidence]
    assert told == [1]


def test_an_embedded_manager_serves_its_agent(run_dir: Path, host: Host) -> None:
    """Without configuration, the agent has a manager of its own, which recovers the job."""
    agent = NodeAgent(
        AgentConfig.from_environment({"TASKD_RUN_DIR": str(run_dir), "TASKD_STANDBY": "0"}),
        lambda: STORE,
    )
    for local_rank in Host.local_ranks:
        agent.worker_environment(local_rank)
    agent.started(host, IDENTITY)
    journal = run_dir / "default" / "journal.jsonl"
    end_s = time.monotonic() + LIMIT_S
    killed = False
    while not (killed and b'"recovered"' in journal.read_bytes()):
        assert time.monotonic() < end_s
        if not killed and journal.exists() and b'"run"' in journal.read_bytes():
            host.processes[0].kill()
            killed = True
        threading.Event().wait(0.02)
    assert host.calls == ["spawn 0 1 1", "spawn 1 1 1"]
    agent.stopping()
    agent.stop()


def test_its_directory_is_gone_in_the_end(run_dir: Path, host: Host) -> None:
    agent = NodeAgent(
        AgentConfig.from_environment({"TASKD_RUN_DIR": str(run_dir), "TASKD_STANDBY": "0"}), lambda: STORE
    )
    variables = msgspec.convert(agent.worker_environment(LocalRank(0)), dict[str, str])
    folder = Path(variables["TASKD_BLACKBOX"]).parent
    assert folder.exists()
    agent.stop()
    assert not folder.exists()
