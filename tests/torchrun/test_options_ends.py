"""The end of jobs: failures and reports, restarts, signals, time limits, watchdogs, events; with and without taskd.

One difference is intended: without `--max-restarts` torchrun restarts nothing, and taskd restarts until its own limits.
"""

import json
import re
from inspect import getsource

import pytest
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.timer import file_based_local_timer

from tests.torchrun.conftest import Play
from tests.torchrun.twins import PROGRAMS, Launch, Seen, launch

THE_END = r"the job ends here: (all \d restarts of the job are spent|torchrun has ended on node 0)"
FAULT = r"^stderr: fault \d+, before any step was known: Rank {} .* Why: "
LOGS = "--log-dir={folder}/logs"

FAILURES: dict[str, Launch] = {
    "exception": launch(LOGS, "--tee=3", "--max-restarts=0", "{observer}", "fail", "9"),
    "exit code": launch("--max-restarts=0", "{observer}", "exit", "7"),
    "killed": launch("--max-restarts=0", "{observer}", "killed"),
    "error file": launch(
        LOGS, "--max-restarts=0", str(PROGRAMS / "recorded.py"), ranks=1, TORCHELASTIC_ERROR_FILE="{folder}/job.json"
    ),
    "function": launch("--max-restarts=0", "--run-path", "--start-method=fork", "{observer}", "fail", "9"),
}
SIGNALS: dict[str, Launch] = {
    "SIGTERM": launch("{observer}", "signal", "SIGTERM", "exit"),
    "SIGUSR1": launch("--signals-to-handle=SIGUSR1,SIGTERM", "{observer}", "signal", "SIGUSR1", "exit"),
    "shutdown timeout": launch("--shutdown-timeout=1", "{observer}", "signal", "SIGTERM", "stay"),
    "watchdog": launch("{observer}", "time out", ranks=1, TORCHELASTIC_ENABLE_FILE_TIMER="1"),
    "watchdog, no restarts": launch(
        "--max-restarts=0", "{observer}", "time out", ranks=1, TORCHELASTIC_ENABLE_FILE_TIMER="1"
    ),
}
OTHERS: dict[str, Launch] = {
    "restarts": launch(LOGS, "--redirects=1", "--max-restarts=2", "{observer}", "fail", "2"),
    "restarts spent": launch("--max-restarts=1", "{observer}", "fail", "9"),
    "interval": launch("--monitor-interval=2.5", "{observer}", ranks=1),
    "events": launch("--event-log-handler=console", "{observer}"),
    "health": launch(
        "{observer}", program=str(PROGRAMS / "health.py"), ranks=1, TORCHELASTIC_HEALTH_CHECK_PORT="{port}"
    ),
    "uninterruptible": launch(
        "--monitor-interval=0.2", "{observer}", "vfork", ranks=1, TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="1"
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_reported_alike(play: Play, name: str) -> None:
    pair = play(FAILURES[name])
    pair.check(THE_END, "the ranks run a function", FAULT.format(1))
    assert pair.stock.statuses == [1], pair.stock.text
    assert "Root Cause (first observed failure)" in pair.stock.text


ENDS_TORCHRUN = "os.getpid(), reap_signal" in getsource(file_based_local_timer)
"""True if torch's watchdog ends torchrun as well as the rank, as in newer torch. Otherwise taskd restarts the rank."""
LEFT_OUT = "watchdog, no restarts" if ENDS_TORCHRUN else "watchdog"
"""Omitted job: if the watchdog ends torchrun, a job without restarts ends by two things at once, in random order."""
WITH_A_FAULT = {"watchdog, no restarts": (FAULT.format(0),), "watchdog": (FAULT.format(0),) if ENDS_TORCHRUN else ()}
"""Additional lines: if it ends both, taskd reports the rank's death if it has detected that first."""


@pytest.mark.parametrize("name", [name for name in SIGNALS if name != LEFT_OUT])
def test_signals_end_the_job_alike(play: Play, name: str) -> None:
    pair = play(SIGNALS[name])
    pair.check(THE_END, *WITH_A_FAULT.get(name, ()))
    assert pair.stock.statuses == [1], pair.stock.text
    assert pair.stock.seconds < 20
    assert pair.taskd.seconds < 20


def test_restarts_until_it_succeeds(play: Play) -> None:
    """Two failures, then success: each attempt finds the same values of its number, and prints them to its own file."""
    pair = play(OTHERS["restarts"])
    assert pair.stock.statuses == pair.taskd.statuses == [0]
    assert starts(pair.taskd) == starts(pair.stock)
    assert attempts(pair.taskd) == attempts(pair.stock)
    assert [said(seen) for seen in (pair.stock, pair.taskd)] == [said(pair.stock)] * 2


def test_restarts_until_they_are_spent(play: Play) -> None:
    pair = play(OTHERS["restarts spent"])
    assert pair.stock.statuses == pair.taskd.statuses == [1]
    assert starts(pair.taskd) == starts(pair.stock)
    assert attempts(pair.taskd) == attempts(pair.stock)
    reports = [seen.text[seen.text.index("Root Cause") :] for seen in (pair.stock, pair.taskd)]
    assert all("exitcode  : 1" in report and "rank      : 1" in report for report in reports), reports


def starts(seen: Seen) -> list[str]:
    return sorted(seen.ranks)


def attempts(seen: Seen) -> dict[str, str]:
    return {name: rank["env"]["TORCHELASTIC_RESTART_COUNT"] for name, rank in seen.ranks.items()}


def said(seen: Seen) -> list[str]:
    """Return the content of the files of each rank and attempt."""
    return sorted(f"{name}: {text}" for name, text in seen.files.items() if text)


def test_monitor_interval(play: Play) -> None:
    pair = play(OTHERS["interval"])
    pair.check()
    assert min(pair.stock.seconds, pair.taskd.seconds) > 2.5


def test_events_on_the_console(play: Play) -> None:
    pair = play(OTHERS["events"])
    assert events(pair.taskd) == events(pair.stock)
    assert len(events(pair.stock)) >= 3


def events(seen: Seen) -> list[tuple[str, str, str, str]]:
    found = [json.loads(line.replace("{time}", "0")) for line in re.findall(r'\{"name": "torchelastic.*\}', seen.text)]
    return sorted(
        (one["name"], one["source"], str(one["metadata"]["global_rank"]), str(one["metadata"]["agent_restarts"]))
        for one in found
    )


def test_health_check_server(play: Play) -> None:
    """torch's own server does nothing. One in its place is started, queried and stopped alike."""
    pair = play(OTHERS["health"])
    pair.check()
    for line in ("server on {port} of 60 s", "started", "alive now", "stopped"):
        assert f"stdout: {line}" in pair.stock.console, pair.stock.text


@pytest.mark.skipif("UNINTERRUPTIBLE" not in getsource(local_elastic_agent), reason="this torch does not look")
def test_a_rank_stuck_in_the_kernel(play: Play) -> None:
    pair = play(OTHERS["uninterruptible"])
    pair.check(THE_END)
    assert "marking worker group UNHEALTHY" in pair.stock.text
