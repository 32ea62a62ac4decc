"""The agent's loop between a scripted manager and a host of real processes in place of torchrun."""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskd.core.diagnosis.evidence import Ending, RunState
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.manager.journal import Journal
from taskd.wire import messages
from taskd.wire.kinds import LocalRank
from taskd.wire.messages import NodeStatus, Order, Stage
from tests.runtime.host import Host
from tests.runtime.scripted import IDENTITY, LIMIT_S, ScriptedManager, stages


def test_an_answer_is_no_reason_to_report(make: Callable[..., NodeAgent], host: Host, manager: ScriptedManager) -> None:
    """Otherwise the two would exchange messages without end. The agent reports at its heartbeats and after a change."""
    make(TASKD_HEARTBEAT_S="0.5").started(host, IDENTITY)
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    heard, began_s = len(manager.heard), time.monotonic()
    while time.monotonic() < began_s + 2:
        manager.listen(0.05)
        while len(manager.heard) > heard:
            heard += 1
            manager.say(Order.RUN, 0, 0, 0)
    assert heard <= 4 + (time.monotonic() - began_s) / 0.5, "about four heartbeats in two seconds"


def test_a_death_is_told_and_a_successor_started(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    host.processes[1].kill()
    dead = manager.until(lambda status: stages(status) == [Stage.STARTING, Stage.DEAD])
    assert dead.ranks[1].cause == "signal 9 (SIGKILL)"
    manager.say(Order.PAUSE, 1, 0, 1)
    new = manager.until(lambda status: status.ranks[1].incarnation == 1)
    assert (new.ranks[1].pid, new.ranks[1].stage, new.generation) == (host.pid(LocalRank(1)), Stage.STARTING, 1)
    assert host.calls == ["spawn 1 1 1"]


def test_the_box_of_the_dead_is_kept_where_the_manager_says(
    agent: NodeAgent, host: Host, manager: ScriptedManager, run_dir: Path
) -> None:
    """A second job of this name runs here too, and has the first folder."""
    with closing(Journal(run_dir, "default")), closing(Journal(run_dir, "default")) as journal:
        manager.records = journal.mark
        manager.until(lambda status: True)
        manager.say(Order.RUN, 0, 0, 0)
        manager.until(lambda status: status.heard == 1)
        host.processes[1].kill()
        manager.until(lambda status: stages(status) == [Stage.STARTING, Stage.DEAD])
        assert [str(box.relative_to(run_dir)) for box in run_dir.glob("*/boxes/*")] == [
            "default.2/boxes/rank-1-incarnation-0.box"
        ]


def test_a_living_process_is_fenced_before_it_is_replaced(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    manager.say(Order.PAUSE, 1, 1, 0)
    manager.until(lambda status: status.ranks[0].incarnation == 1)
    assert host.old[0].wait(LIMIT_S) == -signal.SIGKILL


def test_the_evidence_of_a_death_is_sent_unasked_and_one_that_was_ordered_is_not(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    manager.say(Order.PAUSE, 1, 1, 0)
    manager.until(lambda status: status.ranks[0].incarnation == 1)
    pid = host.pid(LocalRank(1))
    host.processes[1].kill()
    found = manager.evidence_report(asked=False)
    assert list(found) == [1]
    assert found[1].node == 0
    assert found[1].process is not None
    assert found[1].process.pid == pid
    ending = found[1].end.ending
    assert ending is not None
    assert (ending.status, ending.signum, ending.fenced) == (None, signal.SIGKILL, False)
    assert isinstance(ending, Ending)


def test_the_evidence_of_a_death_is_sent_behind_the_report_of_it(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    host.processes[1].kill()
    manager.evidence_report(asked=False)
    first, *_ = (
        message
        for message in manager.received
        if isinstance(message, messages.EvidenceReport) or message.ranks[1].stage is Stage.DEAD
    )
    assert isinstance(first, NodeStatus)


def test_the_evidence_of_a_death_is_sent_when_the_manager_knows_whose_rank_it_was(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    """Before its first order, the manager may not know this agent: a report can be lost while evidence arrives."""
    manager.until(lambda status: True)
    host.processes[1].kill()
    manager.until(lambda status: status.ranks[1].stage is Stage.DEAD)
    agent.stopping()
    manager.until(lambda status: status.leaving)
    assert manager.evidence_reports == []
    manager.say(Order.RUN, 0, 0, 0)
    assert list(manager.evidence_report(asked=False)) == [1]


def test_a_question_is_answered_once_with_what_is_known_of_all_that_live(
    agent: NodeAgent, host: Host, manager: ScriptedManager
) -> None:
    manager.until(lambda status: True)
    host.processes[1].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, host.pid(LocalRank(1)), os.WSTOPPED | os.WNOWAIT)
    for _ in range(3):
        manager.say(Order.RUN, 0, 0, 0, probe=7)
    found = manager.evidence_report(asked=True)
    manager.say(Order.RUN, 0, 0, 0, probe=8)
    assert manager.evidence_report(asked=True).keys() == found.keys() == {0, 1}
    assert found[1].process is not None
    assert found[1].process.state is RunState.STOPPED
    count = len(manager.heard)
    manager.until(lambda status: len(manager.heard) > count + 1)
    assert manager.evidence_reports == []


def test_the_generation_is_that_of_the_newest_order(agent: NodeAgent, manager: ScriptedManager) -> None:
    """This also holds without a new process, as in a retry: a new manager must not start with an older generation."""
    manager.until(lambda status: True)
    manager.say(Order.PAUSE, 7, 0, 0)
    manager.until(lambda status: status.generation == 7)


def test_nobody_answers_then_somebody_does(
    make: Callable[..., NodeAgent], host: Host, manager: ScriptedManager, caplog: pytest.LogCaptureFixture
) -> None:
    made = make(TASKD_MANAGER_WAIT_S="0.5", TASKD_HEARTBEAT_S="0.1")
    made.started(host, IDENTITY)
    end_s = time.monotonic() + LIMIT_S
    while "stock" not in host.calls:
        assert time.monotonic() < end_s
        manager.listen(0.05)
    manager.until(lambda status: True)
    manager.say(Order.RUN, 0, 0, 0)
    while "manage" not in host.calls:
        assert time.monotonic() < end_s
        manager.listen(0.05)
        manager.say(Order.RUN, 0, 0, 0)
    assert host.calls[:2] == ["stock", "manage"]
    assert "for 0.5 s: torchrun's own behaviour takes over" in caplog.text


def test_a_refusal_is_said_once(
    agent: NodeAgent, host: Host, manager: ScriptedManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.until(lambda status: True)
    for _ in range(3):
        count = len(manager.heard)
        manager.refuse("found job 'a', expected 'b'")
        manager.until(lambda status, seen=count: len(manager.heard) > seen)  # type: ignore[misc]
    assert host.calls == ["stock"]
    assert caplog.text.count("the manager refuses this node: found job 'a', expected 'b'") == 1


def test_the_job_is_given_up(agent: NodeAgent, host: Host, manager: ScriptedManager) -> None:
    manager.until(lambda status: True)
    manager.say(Order.STOP, 0, 0, 0, reason="the budget is spent", exit_code=1)
    end_s = time.monotonic() + LIMIT_S
    while not host.calls:
        assert time.monotonic() < end_s
        manager.listen(0.05)
    assert host.calls == ["give up: the budget is spent"]


def test_a_process_that_torchrun_does_not_let_start_is_no_failure_of_ours(
    agent: NodeAgent, host: Host, manager: ScriptedManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.until(lambda status: True)
    host.ends = True
    host.processes[0].kill()
    manager.until(lambda status: status.ranks[0].stage is Stage.DEAD)
    manager.say(Order.RUN, 1, 1, 0)
    assert all(manager.until(lambda status: status.generation == 1) for _ in range(2))
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING] == []
