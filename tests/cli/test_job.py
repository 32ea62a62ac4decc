"""`taskd blackbox` of a whole job: its journal, its faults, its living ranks, and damaged files."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.jobs import PHASES_MS, STACK
from tests.shim.armed import REPOSITORY


def test_the_newest_fault_is_told_in_full(records, blackbox, run_dir) -> None:
    job = records()
    job.processes({0: 4000, 1: 4001, 2: 4002, 3: 4003})
    job.diagnosis(1, "SIGKILL")
    job.recovered(1)
    fields = job.diagnosis(2, "SIGSTOP", native="Thread 4002 (idle)\n    read (libc.so.6)\n")
    job.recovered(2)
    status, output = blackbox(run_dir)
    assert status == 0, output
    lines = output.splitlines()
    assert lines[0] == "job llama · no end recorded, no rank of it here"
    assert "  last fault   2: stopped · rank 2 · recover-in-place" in lines
    table = lines.index("Faults") + 3
    rows = dict(zip("12", lines[table : table + 2], strict=True))
    assert "killed by a signal" in rows["1"]
    assert "rank 2" in rows["1"]
    assert "recover-in-place" in rows["1"]
    assert "92" in rows["1"]
    assert "pause 20 · replace 31 · rebuild 25 · restore 4 · first_step 15" in rows["1"]
    assert "3.25 s" in rows["2"]
    assert "Fault 2: STOPPED · rank 2" in lines
    assert "Fault 1:" not in output
    what, _, why = fields["sentence"].rpartition(". Why: ")
    assert f"what        {what}." in output
    assert f"why         {why}" in output
    assert "victims     ranks 0, 1 and 3" in output
    assert "silent for 3.1 s, limit 3 s, usual step 1 s" in output
    assert "recover-in-place in 92 ms, rank 2 replaced, 3 kept, on with step 42: its node lives" in output
    ranks = lines[lines.index("Ranks, as they were then") + 3 :][:4]
    assert [line.split()[:4] for line in ranks] == [
        ["2", "1", "4002", "culprit"],
        ["0", "0", "4000", "victim"],
        ["1", "0", "4001", "victim"],
        ["3", "1", "4003", "victim"],
    ]
    assert "stopped" in ranks[0]
    assert "allgather 57 of 0007 (256 B)" in ranks[1]
    assert "Python stack of rank 2, main thread, innermost first" in lines
    assert f"  {STACK[11]}" in lines
    assert "… 10 more with --all" in output
    assert "py-spy of rank 2" in lines
    assert "      read (libc.so.6)" in lines
    assert "\x1b" not in output


def test_all_tells_every_fault_and_thread(records, blackbox) -> None:
    job = records()
    job.diagnosis(1, "SIGKILL")
    job.diagnosis(2, "SIGSTOP")
    output = blackbox(job.folder, "--all")[1]
    assert output.index("Fault 1: KILLED BY A SIGNAL · rank 2") < output.index("Fault 2: STOPPED · rank 2")
    assert output.count("Python stack of rank 2, thread MainThread, innermost first") == 2
    assert output.count("Python stack of rank 2, thread pin_memory, innermost first") == 2
    assert output.count("Python stack of rank 0, thread MainThread, innermost first") == 2
    assert "more with --all" not in output


def test_a_start_of_all_tells_what_had_failed_before_it(records, blackbox, document, run_dir) -> None:
    """The page has the start time of the processes, but not the time until the next step, which is unknown."""
    setback = "attempt 1 (recover-in-place) failed: rank 2's new process: exit code 1 at a.py:3 (TypeError: alone)"
    job = records()
    job.diagnosis(1, "SIGKILL")
    job.recovered(1, restart=True, target_step=-1, setbacks=[setback], phases_ms={"started": 29.4})
    output = " ".join(blackbox(run_dir)[1].split())
    assert setback in output
    assert "recover-in-place (all processes anew), which ran after 29 ms" in output
    (told,) = document(run_dir)["faults"]
    assert (told["outcome"], told["total_ms"]) == ("recover-in-place", None)
    assert told["recoveries"][0]["setbacks"] == [setback]


def test_the_document(records, document, run_dir) -> None:
    job = records()
    job.processes({0: 4000, 2: 4002})
    first = job.diagnosis(1, "SIGKILL")
    job.recovered(1)
    job.diagnosis(2, "slow rank")
    box = job.folder / "boxes" / "rank-2-incarnation-0.box"
    box.parent.mkdir()
    box.touch()
    job.stopped("a rank failed", 1)
    told = document(run_dir)
    assert told.keys() == {"version", "kind", "job", "faults", "ranks", "boxes", "jobs"}
    documented = set(re.findall(r"`(\w+)`", (REPOSITORY / "docs" / "blackbox.md").read_text()))
    for part in (told, told["job"], *told["faults"], *(fault["diagnosis"] for fault in told["faults"]), *told["boxes"]):
        assert part.keys() - {"evidence"} <= documented
    assert (told["version"], told["kind"]) == (1, "job")
    head = told["job"]
    assert head["ended"].keys() == {"reason", "exit_code", "unix_s"}
    assert (head["ended"]["reason"], head["ended"]["exit_code"], head["running"]) == ("a rank failed", 1, False)
    assert (head["job_id"], head["folder"], head["managers"]) == ("llama", str(job.folder), 1)
    assert head["pids"] == {"0": 4000, "2": 4002}
    assert head["started_unix_s"] == pytest.approx(time.time(), abs=30)
    one, other = told["faults"]
    assert one["diagnosis"] == {
        **json.loads(json.dumps(first)),
        "unix_s": one["diagnosis"]["unix_s"],
        "monotonic_s": one["diagnosis"]["monotonic_s"],
        "took_s": pytest.approx(3.25, abs=0.5),
    }
    assert one["unix_s"] == pytest.approx(time.time() - 3.25, abs=30)
    assert (one["fault"], one["culprits"], one["outcome"], one["total_ms"]) == (1, [2], "recover-in-place", 92.3)
    assert one["recoveries"][0]["phases_ms"] == PHASES_MS
    assert one["evidence"]["2"]["ending"]["signum"] == 9
    assert other["outcome"] == "reported only"
    assert other["evidence"]["2"]["pace"]["steps"] > 0
    lost = {"readable": False, "pid": None, "ended_unix_s": None, "step": None, "how": None}
    assert told["boxes"] == [{"file": str(box), "rank": 2, "incarnation": 0, **lost}]
    assert all(fault["evidence"] for fault in document(run_dir, "--all")["faults"])


def test_a_living_job_shows_its_ranks(records, start, blackbox, document, run_dir) -> None:
    worker, _ = start()
    job = records()
    job.processes({3: worker.pid, 4: worker.pid + 1})
    start()  # a rank of another job
    told = document(run_dir)
    assert told["job"]["running"] is True
    assert [(rank["rank"], rank["pid"], rank["state"]) for rank in told["ranks"]] == [(3, worker.pid, "alive")]
    output = blackbox(run_dir)[1]
    assert output.startswith("job llama · running\n")
    assert "1 ranks here, 1 more on other nodes, newest step 41" in output
    assert "No fault is recorded." in output
    row = output.splitlines()[-1].split()
    assert row[:4] == ["3", str(worker.pid), "sleeping", "41"]


def test_a_journal_of_an_older_taskd(records, blackbox, document, run_dir) -> None:
    job = records()
    job.recovered()
    job.recovered(causes={"0": "exit code 3", "1": ""}, strategy="recover")
    last = {"strategy": "exit", "reason": "the budget is spent", "causes": {"1": "x"}}
    job.stopped("nobody can go on", 1, fault=last)
    told = document(run_dir)["faults"]
    assert [(fault["fault"], fault["culprits"], fault["outcome"], fault["title"]) for fault in told] == [
        (1, [2], "recover-in-place", "signal 9 (SIGKILL)"),
        (2, [0, 1], "recover", "exit code 3; cause unknown"),
        (3, [1], "exit", "x"),
    ]
    assert told[0]["unix_s"] == pytest.approx(time.time() - 0.1, abs=30)
    output = blackbox(run_dir)[1]
    assert output.startswith("job llama · ended with exit code 1\n")
    assert "nobody can go on" in output
    assert "Fault 3: X · rank 1" in output


DAMAGED = (
    b"\0\xff{]\n", b"[1, 2]\n", b'"text"\n', b'{"event": 7}\n', b'{"event": "diagnosis"}\n', b"[" * 100_000 + b"\n",
    b'{"event": "diagnosis", "kind": "STOPPED", "culprits": "all"}\n', b'{"event": "recovered", "strategy": []}\n',
    b'{"event": "processes", "pids": {"a": 1}}\n', b'{"event": "stopped", "exit_code": "no"}\n',
    b'{"event": "recovered", "stra',
)  # fmt: skip


def test_what_is_only_reported_hides_no_fault(records, blackbox, document, run_dir) -> None:
    job = records()
    for number, name in enumerate(("SIGKILL", "SIGSTOP", "slow rank", "NaN loss"), 1):
        job.diagnosis(number, name)
    job.recovered(2)
    job.recovered(0, causes={}, reason="node 1 is drained", strategy="recover")
    output = blackbox(run_dir)[1]
    told = [line for line in output.splitlines() if line.startswith("Fault ")]
    assert told == ["Fault 2: STOPPED · rank 2", "Fault 4: LOSS NOT FINITE · rank 2"]
    assert [bool(fault["evidence"]) for fault in document(run_dir)["faults"]] == [False, True, False, True, False]
    planned = document(run_dir)["faults"][-1]
    assert (planned["fault"], planned["title"], planned["outcome"], planned["culprits"]) == (
        0,
        "planned",
        "recover",
        [],
    )
    output = blackbox(run_dir, "--all")[1]
    assert "Planned, nothing had failed" in output
    assert "node 1 is drained" in output
    assert "step takes" in output  # the slow rank's


def test_kept_boxes_tell_how_their_processes_have_ended(records, start, blackbox, document, run_dir) -> None:
    job = records()
    kept = job.folder / "boxes" / "rank-3-incarnation-1.box"
    kept.parent.mkdir()
    worker, path = start("sys.exit(3)")
    worker.wait(20)
    kept.write_bytes(path.read_bytes())
    (job.folder / "boxes" / "rank-0-incarnation-0.box").write_bytes(b"no box")
    lines = blackbox(run_dir)[1].splitlines()
    assert any("cannot be read" in line and "rank-0-incarnation-0.box" in line for line in lines)
    (row,) = [line for line in lines if "rank-3-incarnation-1.box" in line]
    assert row.split()[:2] == ["3", str(worker.pid)]
    assert "exit code 3" in row
    (one,) = [box for box in document(run_dir)["boxes"] if box["rank"] == 3]
    assert (one["pid"], one["how"], one["step"], one["readable"]) == (worker.pid, "exit code 3", 41, True)


def test_the_dead_of_an_earlier_job_of_this_name_are_not_shown(records, start, document, run_dir) -> None:
    job = records()
    boxes = job.folder / "boxes"
    boxes.mkdir()
    worker, path = start("sys.exit(3)")
    worker.wait(20)
    for rank in (2, 3):
        (boxes / f"rank-{rank}-incarnation-0.box").write_bytes(path.read_bytes())
    began_s = document(run_dir)["job"]["started_unix_s"]
    os.utime(boxes / "rank-2-incarnation-0.box", (began_s - 60, began_s - 60))
    assert [box["rank"] for box in document(run_dir)["boxes"]] == [3]


def test_damaged_lines_are_counted_and_skipped(records, blackbox, document, run_dir) -> None:
    job = records()
    for raw in DAMAGED[:5]:
        job.append(raw)
    job.diagnosis(1, "SIGSTOP")
    for raw in DAMAGED[5:]:
        job.append(raw)
    told = document(run_dir)
    assert told["job"]["damaged_lines"] == len(DAMAGED)
    assert [fault["culprits"] for fault in told["faults"]] == [[2]]
    assert told["job"]["ended"] is None
    assert f"{len(DAMAGED)} damaged lines were skipped" in blackbox(run_dir)[1]


def test_damaged_evidence_is_named(records, blackbox, document, run_dir) -> None:
    job = records()
    job.diagnosis(1, "SIGSTOP")
    whole = json.loads(job.file(1).read_text())
    whole["evidence"]["1"] = {"process": "gone"}
    whole["evidence"]["2"]["of a newer taskd"] = float("nan")
    job.file(1).write_text(json.dumps(whole))
    status, output = blackbox(run_dir)
    assert status == 0
    assert "damaged, or of a newer taskd: 1\n" in output
    assert "4002  culprit" in output
    assert document(run_dir)["faults"][0]["evidence"]["2"]["of a newer taskd"] is None
    for content in (b"", b"{", b"[]", b'{"evidence": []}', b'{"evidence": {"x": 1}}', b"\xff"):
        job.file(1).write_bytes(content)
        status, output = blackbox(run_dir)
        assert (status, "No evidence: " in output, "Fault 1: STOPPED · rank 2" in output) == (0, True, True)
    job.file(1).unlink()
    assert "No such file" in blackbox(run_dir)[1]


def test_a_record_leads_nowhere_else(records, document, run_dir) -> None:
    job = records()
    (run_dir / "secret.json").write_text(json.dumps({"evidence": {"2": {"node": 7}}}))
    job.diagnosis(1, "SIGSTOP", evidence="../../secret.json")
    told = document(run_dir)["faults"][0]
    assert told["evidence_file"] == str(job.folder / "faults" / "secret.json")
    assert told["evidence"] == {}
    assert told["evidence_problem"].startswith("No such file")


def test_nobody_waits_for_a_pipe(records, blackbox, run_dir) -> None:
    job = records()
    job.diagnosis(1, "SIGSTOP")
    job.file(1).unlink()
    os.mkfifo(job.file(1))
    status, output = blackbox(run_dir)
    assert (status, "it is a folder, a pipe or a device, expected a file" in output) == (0, True)
    (run_dir / "trap").mkdir()
    os.mkfifo(run_dir / "trap" / "journal.jsonl")
    status, output = blackbox(run_dir / "trap")
    assert status == 1
    assert "cannot be read: it is a folder, a pipe or a device, expected a file" in output


def test_the_last_job_of_a_name_counts(records, document, run_dir) -> None:
    job = records()
    job.diagnosis(1, "SIGKILL")
    job.stopped("the first one", 1)
    job.start()
    job.diagnosis(1, "SIGSTOP")
    told = document(run_dir)
    assert [fault["title"] for fault in told["faults"]] == ["stopped"]
    assert told["job"]["ended"] is None
    job.start()  # a new manager of the same job counts its faults anew
    job.diagnosis(1, "SIGSEGV in native code", since_s=5.0)
    faults = document(run_dir, "--all")["faults"]
    assert [(fault["fault"], fault["manager"], fault["outcome"]) for fault in faults] == [
        (1, 1, "not recovered"),
        (1, 2, "reported only"),
    ]
    assert "written for another fault" in faults[0]["evidence_problem"]
    assert faults[1]["evidence"]


def test_a_diagnosis_that_changes_is_one_fault(records, document, run_dir) -> None:
    job = records()
    job.diagnosis(1, "dying")
    job.diagnosis(1, "SIGSEGV in native code")
    (fault,) = document(run_dir)["faults"]
    assert (fault["title"], fault["changes"]) == ("crashed in native code", 1)


@pytest.mark.parametrize(("phase", "outcome"), [("pausing", "under way"), ("strayed", "reported only")])
def test_whether_a_fault_is_being_recovered(phase, outcome, records, document, run_dir) -> None:
    job = records()
    job.journal.write("directive", generation=2, order="pause", phase=phase, reason="")
    job.diagnosis(1, "SIGSTOP")
    told = document(run_dir)
    assert (told["faults"][0]["outcome"], told["job"]["generation"], told["job"]["phase"]) == (outcome, 2, phase)
    job.stopped("nobody can go on", 1)
    assert document(run_dir)["faults"][0]["outcome"] == "not recovered"


def test_several_jobs_are_listed_and_the_newest_is_told(records, blackbox, document, run_dir) -> None:
    old, new = records("old one"), records("new")
    old.stopped()
    os.utime(old.folder / "journal.jsonl", (1e9, 1e9))
    new.diagnosis(1, "SIGSTOP")
    output = blackbox(run_dir)[1]
    assert output.startswith("2 jobs; the newest is shown below")
    assert "\njob new · " in output
    assert [one["job_id"] for one in document(run_dir)["jobs"]] == ["old one", "new"]
    assert blackbox(old.folder)[1].startswith("job old one · ended with exit code 0\n")


def test_a_directory_without_a_job(blackbox, run_dir) -> None:
    status, output = blackbox(run_dir)
    assert status == 1
    assert "holds no job: found no journal.jsonl" in output


def test_the_run_directory_is_the_default(records, blackbox, run_dir) -> None:
    records()
    assert blackbox(TASKD_RUN_DIR=str(run_dir))[1].startswith("job llama · ")


def on_terminal(folder: Path, columns: int, **env: str) -> str:
    """Return the bytes that a terminal of this width receives."""
    leader, follower = pty.openpty()
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "COLUMNS": str(columns),
        "TERM": "xterm-256color",
        **env,
    }
    command = [sys.executable, "-m", "taskd", "blackbox", str(folder)]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    sent = b""
    try:
        while data := os.read(leader, 65536):
            sent += data
    except OSError:  # the terminal's other end is closed
        pass
    os.close(leader)
    assert process.wait(20) == 0, sent
    return sent.decode()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_terminal_has_colour_and_its_own_width(columns, records) -> None:
    job = records()
    job.diagnosis(1, "SIGSTOP")
    job.recovered(1)
    sent = on_terminal(job.folder, columns)
    assert "\x1b[1;31mFault 1: STOPPED · rank 2" in sent
    bare = on_terminal(job.folder, columns, NO_COLOR="1")
    assert "\x1b[1;31m" not in bare
    assert "\x1b[1mFault 1: STOPPED · rank 2" in bare
    plain = re.sub(r"\x1b\[[0-9;]*m", "", bare)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= columns
    for wanted in ("culprit", "allgather 57 of 0007", "rank 2"):
        assert wanted in plain.replace("\r\n", "\n")
