"""Host of processes that wait for their end, in place of a torchrun."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from taskd.errors import RecoveryError
from taskd.runtime.agent.ports import Command, Logs
from taskd.wire.kinds import JobRank, LocalRank
from taskd.wire.messages import Stage

NO_LOGS = Logs(None, None, None)


class Host:
    """Implementation of `WorkerHost` with processes that wait for their end."""

    def __init__(self) -> None:
        self.processes = [self._start(), self._start()]
        self.old: list[subprocess.Popen[bytes]] = []
        self.ends = False  # torchrun ends its ranks: no rank gets a new process
        self.calls: list[str] = []

    local_ranks = (LocalRank(0), LocalRank(1))
    cleaning: tuple[int, ...] = ()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)

    def rank_of(self, local_rank: LocalRank) -> JobRank:
        return JobRank(local_rank)

    def pid(self, local_rank: LocalRank) -> int:
        return self.processes[local_rank].pid

    def environment(self, local_rank: LocalRank) -> dict[str, str]:
        return dict(os.environ)

    def command(self, local_rank: LocalRank) -> Command:
        return Command(("script.py",), False, "it waits, whatever it is")

    def open_logs(self, local_rank: LocalRank, incarnation: int) -> Logs:
        return NO_LOGS

    def spawn(self, local_rank: LocalRank, env: Mapping[str, str], logs: Logs) -> int:
        if self.ends:
            raise RecoveryError("torchrun is ending its ranks")
        self.old.append(self.processes[local_rank])
        self.processes[local_rank] = self._start()
        self.calls.append(f"spawn {local_rank} {env['TASKD_INCARNATION']} {env['TASKD_GENERATION']}")
        return self.pid(local_rank)

    def adopt(self, local_rank: LocalRank, pid: int, env: Mapping[str, str], logs: Logs) -> None:
        raise AssertionError("there is no standby")

    def kill(self, local_rank: LocalRank, number: signal.Signals) -> None:
        if self.processes[local_rank].poll() is None:
            self.processes[local_rank].send_signal(number)

    def exit_status(self, local_rank: LocalRank) -> int | None:
        return self.processes[local_rank].poll()

    def judge(self, local_rank: LocalRank, status: int | None, stage: Stage) -> int | None:
        return status

    def start_template(self, env: Mapping[str, str]) -> int:
        raise AssertionError("no template is wanted")

    def reap_standbys(self) -> tuple[int, ...]:
        return ()

    def manage(self) -> None:
        self.calls.append("manage")

    def stock(self) -> None:
        self.calls.append("stock")

    def assign(self, place: int) -> None:
        self.calls.append(f"assign {place}")

    def dismiss(self) -> None:
        self.calls.append("dismiss")

    def give_up(self, reason: str) -> None:
        self.calls.append(f"give up: {reason}")

    def close(self) -> None:
        for process in [*self.processes, *self.old]:
            process.kill()
            process.wait()
