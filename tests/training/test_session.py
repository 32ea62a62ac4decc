"""A resilient function between its script and its agent: kinds of faults, and a job's end with a checkpoint."""

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from taskd.config.worker import WorkerConfig
from taskd.runtime.agent.sockets import LocalServer, Peer
from taskd.wire.kinds import JobRank
from taskd.wire.messages import (
    Abandon,
    Condition,
    Hello,
    Join,
    Pause,
    Refuses,
    Release,
    SawNonFinite,
    SetupRecorded,
    Stage,
    WorkerReport,
    WorldPlan,
)
from tests.launch import Launcher
from tests.runtime.local import Ear
from tests.training.job import ENVIRONMENT

PROGRAM = Path(__file__).with_name("session_program.py")


class Agent:
    """Agent of one process."""

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.server = LocalServer(directory / "agent.sock")
        self.checkpoints: Path | None = directory / "checkpoints"
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
        self._launcher, self._directory, self._ear = launcher, directory, Ear(self.server)
        self._peer: Peer | None = None
        self._generation = 0

    def start(self, case: str, saw: SawNonFinite | None = None) -> "subprocess.Popen[bytes]":
        """Start the process and wait for its first step."""
        config = WorkerConfig(
            agent_socket=self.server.path,
            agent_pid=os.getpid(),
            run_dir=self._directory,
            rank=JobRank(0),
            incarnation=1,
            generation=0,
            position=self._directory / "position",
            setup=self._directory / "setup",
            checkpoint_dir=self.checkpoints,
        )
        env = {**ENVIRONMENT, **config.environment(), "RANK": "0", "WORLD_SIZE": "1", "PORT": str(self._store.port)}
        env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        process = self._launcher.start(["python", PROGRAM, case], env=env)
        self._peer, _ = self._ear.until(lambda _peer, message: isinstance(message, Hello))
        self._ear.until(lambda peer, message: peer is self._peer and isinstance(message, SetupRecorded))
        self.expect(Stage.TRAINING)
        if saw is not None:
            assert self._ear.until(lambda peer, _message: peer is self._peer)[1] == saw
        self.expect(Stage.COMMITTED)
        return process

    def expect(self, *stages: Stage) -> WorkerReport:
        """Require that the next reports are of these stages, in this order. Return the last one."""
        reports = []
        for stage in stages:
            _, report = self._ear.until(lambda peer, _message: peer is self._peer)
            assert isinstance(report, WorkerReport)
            assert report.stage is stage, report
            reports.append(report)
        return reports[-1]

    def refused(self) -> Refuses:
        """Return the next message, by which the process refuses something or withdraws a refusal."""
        _, refuses = self._ear.until(lambda peer, _message: peer is self._peer)
        assert isinstance(refuses, Refuses), refuses
        return refuses

    def tell(self, message: Pause | Join | Release | Abandon) -> None:
        assert self._peer is not None
        assert self._peer.send(message)

    def join(
        self, dump: str = "", dump_to: bytes = b"", replicas: int = 0, world_size: int = 1, timeout_s: float = 20
    ) -> None:
        """Order a pause, and a new world of the next generation."""
        self._generation += 1
        self.tell(Pause(generation=self._generation, reason="a test"))
        report = self.expect(Stage.PAUSED)
        assert (report.step, report.condition) == (1, Condition.CLEAN)
        plan = self.plan(
            self._generation, world_size=world_size, timeout_s=timeout_s, dump=dump, dump_to=dump_to, replicas=replicas
        )
        self.tell(Join(plan=plan))

    def plan(
        self,
        generation: int,
        *,
        target_step: int = 1,
        world_size: int = 1,
        timeout_s: float = 20,
        dump: str = "",
        dump_to: bytes = b"",
        replicas: int = 0,
    ) -> WorldPlan:
        """Return the plan of a world in which this process keeps its own state."""
        return WorldPlan(
            generation=generation,
            world_size=world_size,
            store_host="127.0.0.1",
            store_port=self._store.port,
            target_step=target_step,
            adopt=(),
            transfers=(),
            timeout_s=timeout_s,
            dump=dump,
            dump_to=dump_to,
            replicas=replicas,
        )


@pytest.fixture
def agent(launcher: Launcher, run_dir: Path) -> Iterator[Agent]:
    made = Agent(launcher, run_dir)
    yield made
    made.server.close()
    del made._store


@pytest.mark.parametrize(("case", "cause"), [("runtime", "RuntimeError: a peer"), ("retry", "Flaky: link down")])
def test_a_fault_of_the_job_is_redone(agent: Agent, case: str, cause: str) -> None:
    process = agent.start(case)
    assert agent.expect(Stage.PAUSED).cause.startswith(cause)
    agent.join()
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.FINISHED)
    agent.tell(Release(generation=1))
    agent.expect(Stage.RELEASED)
    assert process.wait(20) == 0


def test_a_pause_that_comes_right_behind_the_plan(agent: Agent) -> None:
    """The newcomer has died: no rank forms that world any more, whether or not this process has started to."""
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    for generation in range(1, 20, 2):
        agent.join(world_size=2, timeout_s=600)
        agent.tell(Pause(generation=generation + 1, reason="the newcomer has died"))
        assert agent.expect(Stage.PAUSED).generation == generation + 1
        agent._generation += 1
    agent.join()
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.FINISHED)
    agent.tell(Release(generation=21))
    agent.expect(Stage.RELEASED)
    assert process.wait(20) == 0


@pytest.mark.parametrize("case", ["shapes", "closed"])
def test_what_ends_the_first_step_of_a_new_world(agent: Agent, case: str) -> None:
    """An error of the script itself is not tried again beside a new process; one caused by a connection is."""
    process = agent.start(case)
    agent.expect(Stage.PAUSED)
    agent.join()
    agent.expect(Stage.JOINED, Stage.RESTORED)
    if case == "shapes":
        refuses = agent.refused()
        assert not refuses.no_rebuild
        assert refuses.no_newcomer.endswith(
            "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params"
        )
    agent.expect(Stage.PAUSED)
    agent.join()
    if case == "shapes":
        assert agent.refused() == Refuses()
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.FINISHED)
    agent.tell(Release(generation=2))
    agent.expect(Stage.RELEASED)
    assert process.wait(20) == 0


@pytest.mark.parametrize(("case", "message"), [("plain", "a bug of the script"), ("fatal", "the data set is broken")])
def test_what_is_the_scripts_own_goes_up(agent: Agent, launcher: Launcher, case: str, message: str) -> None:
    process = agent.start(case)
    assert process.wait(20) == 1
    assert message in launcher.output(process)


def test_a_loss_that_is_not_finite_is_told(agent: Agent) -> None:
    process = agent.start("nan", saw=SawNonFinite(step=1, what="loss", value="nan"))
    agent.expect(Stage.PAUSED)
    agent.join()
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.FINISHED)
    agent.tell(Release(generation=1))
    agent.expect(Stage.RELEASED)
    assert process.wait(20) == 0


def test_an_order_to_leave_at_the_next_commit_is_seen_there(agent: Agent) -> None:
    process = agent.start("drained")
    agent.tell(Pause(generation=1, reason="the node is drained", at_commit=True))
    report = agent.expect(Stage.PAUSED)
    assert (report.step, report.condition, report.cause) == (2, Condition.CLEAN, "")
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1


def test_a_pause_before_a_commit(agent: Agent) -> None:
    """This holds for any of a process's first commits: the step counts once."""
    process = agent.start("each")
    for step in range(2, 8):
        agent.tell(Pause(generation=step, reason="a test"))
        report = agent.expect(Stage.PAUSED)
        assert (report.step, report.condition) == (step, Condition.CLEAN)
        agent.tell(Join(plan=agent.plan(step, target_step=step)))
        agent.expect(Stage.JOINED, Stage.RESTORED)
    agent.tell(Pause(generation=9, reason="a test"))
    agent.expect(Stage.PAUSED)
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1


@pytest.mark.parametrize(("case", "condition"), [("asking", Condition.CLEAN), ("raising", Condition.TORN)])
def test_a_pause_in_the_middle_of_a_commit(agent: Agent, case: str, condition: Condition) -> None:
    """A user's part asks for the world size in `state_dict()`: the step counts once, or not at all."""
    process = agent.start(case)
    agent.tell(Pause(generation=1, reason="a test"))
    report = agent.expect(Stage.PAUSED)
    assert (report.step, report.condition) == (2, condition)
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1


def test_a_smaller_batch_is_told(agent: Agent, launcher: Launcher) -> None:
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    agent.join(replicas=2)
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.FINISHED)
    agent.tell(Release(generation=1))
    assert process.wait(20) == 0
    assert "1 of 2 ranks go on, and the script does not use state.shares()" in launcher.output(process)


def test_a_job_ends_with_a_checkpoint(agent: Agent, launcher: Launcher) -> None:
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    agent.join(dump="no node came")
    agent.expect(Stage.JOINED, Stage.RESTORED)
    assert agent.expect(Stage.DUMPED).step == 1
    assert agent.checkpoints is not None
    assert (agent.checkpoints / "step-1" / "taskd.json").is_file()
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1
    assert f"no node came; step 1 was written to {agent.checkpoints}/step-1" in launcher.output(process)


@pytest.mark.parametrize("own", [True, False], ids=["the environment names another", "the environment names none"])
def test_the_managers_directory_comes_first(agent: Agent, run_dir: Path, own: bool) -> None:
    wanted = run_dir / "the manager's"
    mine = agent.checkpoints
    agent.checkpoints = mine if own else None
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    agent.join(dump="no node came", dump_to=bytes(wanted))
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.DUMPED)
    assert (wanted / "step-1" / "taskd.json").is_file()
    assert mine is not None
    assert not mine.exists()
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1


def test_a_fault_after_the_checkpoint_finds_the_process_waiting(agent: Agent) -> None:
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    agent.join(dump="no node came")
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.DUMPED)
    agent.join()
    agent.expect(Stage.JOINED, Stage.RESTORED, Stage.FINISHED)
    agent.tell(Release(generation=2))
    assert process.wait(20) == 0


def test_a_checkpoint_that_cannot_be_written_is_reported(agent: Agent, run_dir: Path) -> None:
    assert agent.checkpoints is not None
    agent.checkpoints.write_text("not a directory")
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    agent.join(dump="no node came")
    agent.expect(Stage.JOINED, Stage.RESTORED)
    assert "CheckpointError: step 1 was not written" in agent.expect(Stage.PAUSED).cause
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1


def test_no_directory_for_checkpoints(agent: Agent) -> None:
    agent.checkpoints = None
    process = agent.start("runtime")
    agent.expect(Stage.PAUSED)
    agent.join(dump="no node came")
    agent.expect(Stage.JOINED, Stage.RESTORED)
    assert "set TASKD_CHECKPOINT_DIR" in agent.expect(Stage.PAUSED).cause
    agent.tell(Abandon(reason="the job ends"))
    assert process.wait(20) == 1
