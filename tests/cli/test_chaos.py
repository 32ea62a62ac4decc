"""`taskd chaos` on processes: its targets, the effects that it undoes, and its refusals."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from taskd.core.nodecheck.probes import CHECK_NAME
from taskd.errors import ChaosError
from taskd.runtime.chaos.cleanup import NAME as CLEANUP
from taskd.runtime.chaos.target import descends, send, target
from taskd.runtime.system.processes import children, read
from tests.cli.chaos import state
from tests.shim.armed import end_of, plain, until


def test_a_rank_is_killed_and_no_other(make_node) -> None:
    node = make_node()
    victim, other = node.pids["rank 1"], node.pids["rank 0"]
    status, told = node.run("kill", 1)
    assert status == 0, told
    assert told.partition(" ")[2] == f"rank 1 (pid {victim}): SIGKILL\n"
    until(lambda: state(victim) in ("", "Z"), "it is dead")
    assert state(other) in ("R", "S")
    status, told = node.run("kill", 1)
    assert status == 1
    assert "rank 1 has no process at this moment" in told


def test_a_local_rank_is_a_rank_of_this_node(make_node) -> None:
    node = make_node()
    status, told = node.run("kill", "--local-rank", 0, "--dry-run")
    assert (status, told.partition(" ")[2]) == (0, f"would do: rank 0 (pid {node.pids['rank 0']}): SIGKILL\n")
    assert state(node.pids["rank 0"]) in ("R", "S")
    assert "found no local rank 2, expected one of the 2 of this node" in node.run("kill", "--local-rank", 2)[1]
    status, told = node.run("kill", "--rank", 7)
    assert status == 1
    assert "found no rank 7 of job llama on this node, expected one of its ranks here: 0, 1" in told


def test_a_rank_of_the_second_node_is_named_by_its_number_in_the_job(make_node) -> None:
    node = make_node(first=2)
    victim, other = node.pids["rank 3"], node.pids["rank 2"]
    status, told = node.run("kill", 0)
    assert status == 1
    assert "found no rank 0 of job llama on this node, expected one of its ranks here: 2, 3" in told
    status, told = node.run("kill", "--local-rank", 0, "--dry-run")
    assert (status, told.partition(" ")[2]) == (0, f"would do: rank 2 (pid {other}): SIGKILL\n")
    status, told = node.run("kill", 3)
    assert (status, told.partition(" ")[2]) == (0, f"rank 3 (pid {victim}): SIGKILL\n")
    until(lambda: state(victim) in ("", "Z"), "it is dead")
    assert state(other) in ("R", "S")
    assert "rank 3 has no process at this moment" in node.run("kill", 3)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP])
def test_a_stop_is_undone_when_somebody_ends_it(number, make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    playing = node.play("stop", 0)
    until(lambda: state(victim) == "T", "it is stopped")
    told = node.end(playing, number)
    assert state(victim) in ("R", "S")
    assert [line.partition(" ")[2] for line in told.splitlines()] == [
        f"rank 0 (pid {victim}): SIGSTOP",
        f"the scenario ends: {number.name}",
        f"undone: rank 0 (pid {victim}): SIGCONT",
    ]


def test_a_stop_is_undone_when_the_command_is_killed(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    playing = node.play("stop", 0)
    until(lambda: state(victim) == "T", "it is stopped")
    (cleanup,) = children(playing.pid)
    with end_of(cleanup) as ended:
        playing.kill()
        playing.wait()
        assert ended(20)
    assert state(victim) in ("R", "S")
    assert f"undone: rank 0 (pid {victim}): SIGCONT" in node.said(playing)


def test_without_its_cleanup_process_the_command_undoes_by_itself(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    playing = node.play("stop", 0)
    until(lambda: state(victim) == "T", "it is stopped")
    (cleanup,) = children(playing.pid)
    assert (read(f"/proc/{cleanup}/comm") or "").strip() == CLEANUP
    os.kill(cleanup, signal.SIGKILL)
    told = node.end(playing)
    assert f"the cleanup process (pid {cleanup}) was killed; undoing in its place" in told
    assert state(victim) in ("R", "S")


def test_the_cleanup_process_outlives_what_ends_a_terminal(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    playing = node.play("stop", 0)
    until(lambda: state(victim) == "T", "it is stopped")
    (cleanup,) = children(playing.pid)
    until(lambda: (read(f"/proc/{cleanup}/comm") or "").strip() == CLEANUP, "the cleanup process is ready")
    assert os.getsid(cleanup) == cleanup
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(cleanup, number)
    playing.kill()
    playing.wait()
    until(lambda: state(victim) in ("R", "S"), "the cleanup process has undone it")


def test_a_pause_ends_by_itself(make_node) -> None:
    node = make_node(1)
    status, told = node.run("pause", 0, "--for", 0.2)
    assert status == 0, told
    assert "the scenario ends: 0.2 s are over" in told
    assert told.splitlines()[-1].endswith(f"undone: rank 0 (pid {node.pids['rank 0']}): SIGCONT")
    assert state(node.pids["rank 0"]) in ("R", "S")


def test_what_ends_while_it_is_stopped_needs_no_undoing(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    playing = node.play("stop", 0)
    until(lambda: state(victim) == "T", "it is stopped")
    os.kill(victim, signal.SIGKILL)
    assert playing.wait(20) == 0
    assert f"rank 0 (pid {victim}) has ended: taskd, or somebody else, has replaced it" in node.said(playing)
    assert "undone" not in node.said(playing)
    assert node.said(playing).count("nothing to undo") == 1


def test_what_somebody_else_has_stopped_is_left_alone(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    os.kill(victim, signal.SIGSTOP)
    until(lambda: state(victim) == "T", "it is stopped")
    status, told = node.run("stop", 0, "--for", 0.1)
    assert status == 1
    assert f"rank 0 (pid {victim}) is stopped already, by somebody else" in told
    assert state(victim) == "T"


def test_a_delayed_rank_goes_on_between_its_stops(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    playing = node.play("delay", 0, "--ms", 50, "--every", 0.1)
    for _ in range(3):
        until(lambda: state(victim) == "T", "it stands")
        until(lambda: state(victim) != "T", "it goes on")
    told = node.end(playing)
    assert f"rank 0 (pid {victim}): stands 50 ms of every 0.1 s: 50% of its time" in told
    assert state(victim) in ("R", "S")


def test_node_checks_are_killed_as_they_appear_and_no_stranger(make_node, launcher, run_dir) -> None:
    named = run_dir / CHECK_NAME
    named.symlink_to("/bin/sleep")
    stranger = launcher.start([named, "1000"])
    node = make_node(1, checks=3)
    playing = node.play("kill-check")
    node.until_said(playing, "SIGKILL")
    until(lambda: node.said(playing).count("SIGKILL") == 3, "three checks are killed")
    told = node.end(playing)
    checks = [pid for name, pid in node.pids.items() if name.startswith("check")]
    assert len(checks) == 3
    for pid in checks:
        assert f"node check (pid {pid}): SIGKILL" in told
    assert "3 node checks were killed" in told
    assert stranger.poll() is None
    assert state(node.pids["rank 0"]) in ("R", "S")


def test_a_kill_of_node_checks_may_be_set_before_the_job_is_there(make_node, launcher) -> None:
    command = ["python", "-m", "taskd", "chaos", "kill-check", "--job", "later"]
    playing = launcher.start(command, env=plain())
    until(lambda: "waiting for it" in launcher.output(playing), "it waits")
    make_node(1, job="later", checks=1)
    until(lambda: "SIGKILL" in launcher.output(playing), "it strikes")
    playing.send_signal(signal.SIGINT)
    assert playing.wait(20) == 0


def test_a_scenario_ends_with_the_job(make_node) -> None:
    node = make_node(1)
    playing = node.play("kill-check")
    node.until_said(playing, "waiting for node checks")
    node.agent.terminate()
    node.agent.wait()
    assert playing.wait(20) == 0
    assert "the scenario ends: the job has ended on this node" in node.said(playing)


def test_of_two_jobs_one_must_be_named(make_node, launcher) -> None:
    nodes = make_node(1, job="one"), make_node(1, job="two")
    names = f"job one, run directory {nodes[0].run_dir}", f"job two, run directory {nodes[1].run_dir}"

    def run(*words: str) -> tuple[int, str]:
        return launcher.run(["python", "-m", "taskd", "chaos", "kill", "0", "--dry-run", *words], env=plain())

    status, told = run()
    assert status == 1
    assert "choose by --job, --run-dir, or --agent" in told
    for name in names:
        assert name in told
    victim = nodes[1].pids["rank 0"]
    assert f"rank 0 (pid {victim})" in run("--job", "two")[1]
    assert f"rank 0 (pid {victim})" in run("--run-dir", str(nodes[1].run_dir))[1]
    status, told = run("--job", "three")
    assert status == 1
    assert "found no such job on this node, only: " in told


def test_a_directory_of_a_dead_agent_is_no_job(launcher, leak_mark) -> None:
    """Its number is that of a living process, which does not hold it open. Agents of other tests may sweep it."""
    left = Path("/dev/shm") / f"taskd-{os.getpid()}-{leak_mark[:8]}"
    left.mkdir(mode=0o700)
    told = launcher.run(["python", "-m", "taskd", "chaos", "kill", "0", "--agent", str(os.getpid())], env=plain())
    shutil.rmtree(left, ignore_errors=True)
    assert told[0] == 1
    assert "found no job under taskd" in told[1] or "found no such job" in told[1]  # others may run here


def test_the_page_lists_ranks_and_scenarios(make_node) -> None:
    node = make_node(2)
    status, told = node.run("list")
    assert status == 0, told
    lines = told.splitlines()
    assert lines[0] == f"job llama · torchrun {node.agent.pid} · 2 ranks on this node"
    rows = [line.split() for line in lines]
    for rank in (0, 1):
        assert any(row[:3] == [str(rank), str(node.pids[f"rank {rank}"]), "0"] for row in rows)
    for scenario in ("kill-check", "kill", "stop", "pause", "delay", "cpu", "memory", "disk", "cut-link", "slow-link"):
        assert any(row[:1] == [scenario] for row in rows), scenario


def test_only_the_very_process_is_signalled_and_only_if_it_is_ours(launcher) -> None:
    process = launcher.start(["sleep", "1000"])
    ours = target(process.pid, "it")
    assert ours is not None
    younger = replace(ours, start_ticks=ours.start_ticks - 1)
    assert not send(younger, signal.SIGKILL, lambda _pid: True)
    with pytest.raises(ChaosError, match="is no process below this job's torchrun"):
        send(ours, signal.SIGKILL, lambda pid: descends(pid, younger))
    assert process.poll() is None
    assert send(ours, signal.SIGKILL, lambda pid: descends(pid, ours))
    assert process.wait(20) == -signal.SIGKILL
    assert not send(ours, signal.SIGKILL, lambda _pid: True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "SCENARIO"),
        (["burn"], "invalid choice: 'burn'"),
        (["kill"], "RANK --rank --local-rank is required"),
        (["kill", "two"], "found 'two', expected a rank, from 0"),
        (["kill", "1", "--local-rank", "1"], "not allowed with argument"),
        (["kill", "1", "--for", "3"], "give --every too, or neither"),
        (["pause", "1"], "give --for SECONDS"),
        (["delay", "1"], "required: --ms"),
        (["delay", "1", "--ms", "1000"], "is not shorter than its period, --every 1 s"),
        (["cpu", "--percent", "120"], "found '120', expected a percentage above 0 and up to 100"),
        (["memory"], "one of the arguments --mib --percent is required"),
        (["memory", "--mib", "0.5"], "found '0.5', expected a whole number above 0"),
        (["stop", "1", "--for", "nan"], "found 'nan', expected a number above 0"),
        (["cut-link", "--peer", "node1", "--down"], "give --peer or --down"),
        (["slow-link"], "required: --mbit"),
        (["stop", "1", "--mbit", "3"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_said(words, complaint, capsys) -> None:
    from taskd.cli import main

    with pytest.raises(SystemExit) as left:
        main(["chaos", *words])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


def test_its_output_may_go_nowhere(make_node) -> None:
    node = make_node(1)
    victim = node.pids["rank 0"]
    command = f"{sys.executable} -m taskd chaos stop 0 --agent {node.agent.pid} --for 0.2 | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, **_words(plain())},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    until(lambda: state(victim) in ("R", "S"), "it goes on")


def _words(env: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value is not None}
