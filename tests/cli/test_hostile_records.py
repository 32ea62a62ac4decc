"""Records that an attacker has made to harm their readers: their terminal, their time, their memory."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAMS
from tests.cli.test_job import on_terminal
from tests.launch import Launcher
from tests.shim.armed import REPOSITORY, plain
from tests.thorough import everyday

Blackbox = Callable[..., tuple[int, str]]
EVIL = "\x1b]0;owned\x07\x9b31m\u202e\x00\r\nforged line\u2028forged too\x85\tend"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MIB = 1 << 20
NUMBERS = (
    "Infinity",
    "-Infinity",
    "NaN",
    "1e308",
    "-1e308",
    "1" * 4000,
    "-" + "1" * 4000,
    "-1",
    "18446744073709551616",
)


def write(folder: Path, *entries: dict[str, Any] | str) -> Path:
    """Write a job of these entries; texts are written as they are."""
    folder.mkdir(parents=True)
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def harmless(text: str) -> bool:
    """Return whether the text has nothing that a terminal obeys, and no forged line."""
    return all(char.isprintable() or char == "\n" for char in text) and "\nforged" not in text


@pytest.fixture
def evil(run_dir: Path) -> Path:
    """Write a job in which every text of every entry, of the evidence and of names is hostile."""
    fact = {"rank": 1, "kind": EVIL, "text": EVIL}
    diagnosis = {"event": "diagnosis", "fault": 1, "kind": EVIL, "title": EVIL, "culprits": [2], "victims": [1]}
    recovered = {"event": "recovered", "fault": 1, "strategy": EVIL, "reason": EVIL, "setbacks": [EVIL]}
    folder = write(
        run_dir / "job\x1b[2J\nforged",
        {"event": "manager started", "job_id": EVIL},
        {
            **diagnosis,
            "sentence": f"{EVIL}. Why: {EVIL}",
            "facts": [fact],
            "hang": {"reason": EVIL},
            "evidence": "1.json",
        },
        {**recovered, "causes": {"2": EVIL}, "phases_ms": {EVIL: 1.0, "total": 3.0}, "replaced": {"2": 1}},
        {"event": "directive", "generation": 1, "phase": EVIL},
        {"event": "stopped", "reason": EVIL, "exit_code": 1, "fault": {"strategy": EVIL, "reason": EVIL}},
    )
    (folder / "faults").mkdir()
    thread = {"name": EVIL, "stack": [EVIL]}
    rank = {"stack": [EVIL], "threads": [thread], "native": "ok", "process": {"pid": 1, "wchan": EVIL}}
    (folder / "faults" / "1.json").write_text(json.dumps({"evidence": {"2": rank, "1": {"stack": ["a.py:1 in f"]}}}))
    return folder


def test_no_text_reaches_the_terminal_as_a_command(evil: Path, blackbox: Blackbox, run_dir: Path) -> None:
    write(run_dir / f"other{EVIL.replace(chr(0), '')[:60]}")
    for words in ((), ("--all",), ("--json",)):
        status, output = blackbox(run_dir, *words)
        assert status == 0
        assert harmless(output)
    assert r"\x1b]0;owned\x07" in blackbox(run_dir)[1], "it is shown, as text"


def test_nor_on_a_terminal_with_colours(evil: Path, run_dir: Path) -> None:
    write(run_dir / "other")
    for folder in (run_dir, evil):
        sent = on_terminal(folder, 120).replace("\r\n", "\n")
        assert "\x1b[" in sent
        assert harmless(COLOUR.sub("", sent))


def test_errors_are_one_harmless_line(run_dir: Path, blackbox: Blackbox, launcher: Launcher) -> None:
    folder = run_dir / "x\x1b[2J\nforged"
    folder.mkdir()
    os.mkfifo(folder / "journal.jsonl")
    for target in (run_dir, folder, run_dir / "none\x1b[2J\nforged", "9" * 5000, "\udcff\n"):
        status, output = blackbox(target)
        assert status == 1
        assert harmless(output)
        assert output.count("\n") == 1
        assert output.startswith("taskd blackbox: ")
    env = {**plain(), "TASKD_RUN_DIR": "/x\x1b[2J\nforged", "TASKD_LOGG\x1b[2J": "x"}
    status, output = launcher.run(["python", "-m", "taskd", "doctor"], env=env)
    assert (status, harmless(output)) == (1, True)


@pytest.mark.parametrize("number", everyday(NUMBERS, "Infinity", "-1", "1" * 4000), ids=lambda number: number[:12])
def test_no_number_is_too_odd(number: str, run_dir: Path, blackbox: Blackbox) -> None:
    n = number
    write(
        run_dir / "job",
        f'{{"event":"manager started","unix_s":{n},"job_id":"odd"}}',
        f'{{"event":"diagnosis","kind":"STOPPED","fault":1,"unix_s":{n},"since_s":1,"monotonic_s":{n}}}',
        f'{{"event":"diagnosis","kind":"STOPPED","fault":{n},"culprits":[{n}],"step":{n}}}',
        f'{{"event":"diagnosis","kind":"STOPPED","hang":{{"silent_s":{n},"limit_s":{n}}},"facts":[{{"rank":{n}}}]}}',
        f'{{"event":"recovered","strategy":"x","phases_ms":{{"a":{n},"total":{n}}},"target_step":{n}}}',
        f'{{"event":"recovered","strategy":"x","phases_ms":{{"started":{n}}},"kept":{{"{n}":{n}}}}}',
        f'{{"event":"recovered","strategy":"x","causes":{{"{n}":"y"}},"replaced":{{"{n}":1}},"detected_s":{n}}}',
        f'{{"event":"processes","node_rank":{n},"pids":{{"{n}":{n}}}}}',
        f'{{"event":"directive","generation":{n},"phase":{n}}}',
        f'{{"event":"stopped","exit_code":{n},"unix_s":{n},"fault":{{"strategy":"x","fault":{n}}}}}',
    )
    for words in ((), ("--all",), ("--json",)):
        status, output = blackbox(run_dir, *words)
        assert status == 0, output
        assert max(map(len, output.splitlines())) < 10_000


def test_ranks_of_other_alphabets_and_5000_digits(run_dir: Path, blackbox: Blackbox) -> None:
    causes = {"²": "a", "٣": "b", "9" * 4500: "c"}
    write(
        run_dir / "job",
        {"event": "recovered", "strategy": "x", "causes": causes, "replaced": {"٣": 2, "²": 1}},
        {"event": "recovered", "strategy": "x", "causes": {"²": "a", "٣": "b"}, "replaced": {"٣": 2, "²": 1}},
        {"event": "processes", "pids": causes | {"x": 1}},
    )
    for words in ((), ("--json",)):
        status, output = blackbox(run_dir, *words)
        assert status == 0, output


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": _fifo,
    "folder": Path.mkdir,
    "socket": _socket,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "loop": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "huge file": _huge,
    "empty file": Path.touch,
}


@pytest.mark.parametrize("kind", everyday(KINDS, "pipe", "folder", "endless device", "dangling link"))
@pytest.mark.parametrize(
    "place", ["journal.jsonl", "faults", "faults/1.json", "boxes", "boxes/rank-0-incarnation-0.box"]
)
def test_whatever_stands_in_the_place_of_a_record(kind: str, place: str, run_dir: Path, blackbox: Blackbox) -> None:
    write(run_dir / "whole", {"event": "manager started", "job_id": "whole"})
    diagnosis = {"event": "diagnosis", "kind": "STOPPED", "fault": 1, "evidence": "faults/1.json"}
    folder = write(run_dir / "job", {"event": "manager started", "job_id": "j"}, diagnosis)
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    for words in ((), ("--json",)):
        status, output = blackbox(run_dir, *words)
        assert (status, "Traceback" in output) == (0, False), output


def test_a_job_that_cannot_be_read_hides_no_other(run_dir: Path, blackbox: Blackbox) -> None:
    write(run_dir / "whole", {"event": "manager started", "job_id": "whole"})
    (run_dir / "trap").mkdir()
    os.mkfifo(run_dir / "trap" / "journal.jsonl")
    status, output = blackbox(run_dir)
    assert status == 0
    assert "job whole" in output
    (said,) = [line for line in output.splitlines() if "trap" in line]
    assert "left out" in said
    assert "expected a file" in said


def test_what_this_user_may_not_read_hides_nothing_else(run_dir: Path) -> None:
    diagnosis = {"event": "diagnosis", "kind": "STOPPED", "fault": 1, "evidence": "faults/1.json"}
    write(run_dir / "mine", {"event": "manager started", "job_id": "mine"})
    closed = write(run_dir / "closed", {"event": "manager started"})
    newest = write(run_dir / "newest", {"event": "manager started", "job_id": "newest"}, diagnosis)
    paths = (newest / "faults", newest / "boxes", closed)
    for path in paths:
        path.mkdir(exist_ok=True)
        path.chmod(0)
    run_dir.chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, PROGRAMS / "stranger.py", run_dir],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for path in paths:
            path.chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"left out +boxes: Permission denied", done.stdout)
    assert re.search(r"No evidence: .*1.json: Permission denied", done.stdout)
    assert re.search(r"^ +mine ", done.stdout, re.MULTILINE)


def bounded(blackbox_words: list[str | Path]) -> list[str | Path]:
    """Return the command in 1.5 GiB of address space."""
    return [
        "bash",
        "-c",
        'ulimit -v 1500000; exec "$@"',
        "-",
        sys.executable,
        "-m",
        "taskd",
        "blackbox",
        *blackbox_words,
    ]


def test_a_journal_of_gigabytes(run_dir: Path, launcher: Launcher) -> None:
    folder = write(run_dir / "job", {"event": "manager started", "job_id": "long ago"})
    os.truncate(folder / "journal.jsonl", 3 << 30)
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write('\n{"event":"manager started","job_id":"now"}\n{"event":"diagnosis","kind":"STOPPED"}\n')
    status, output = launcher.run(bounded([run_dir]), env=plain())
    assert status == 0, output
    assert "job now" in output
    assert "the oldest 3008 MiB of the journal: the newest 64 are read" in output


def test_more_faults_than_anybody_has(run_dir: Path, launcher: Launcher) -> None:
    folder = write(run_dir / "job", {"event": "manager started"})
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"event":"diagnosis","kind":"STOPPED"}\n' * 60_000)
        journal.write(b'{"event":"manager started"}\n' * 60_000)
        journal.write(b'{"event":"stopped","fault":{"strategy":"exit"}}\n' * 1000)
        journal.write(b'{"event":"diagnosis","kind":"STOPPED","fault":7}\n')
        journal.write(b'{"event":"recovered","fault":7,"strategy":"recover"}\n' * 60_000)
    status, output = launcher.run(bounded([run_dir]), env=plain())
    assert status == 0, output
    assert "older faults or recoveries, of more than are shown" in output


def test_more_boxes_and_jobs_than_anybody_has(run_dir: Path, launcher: Launcher) -> None:
    folder = write(run_dir / "job", {"event": "manager started"})
    (folder / "boxes").mkdir()
    for number in range(3000):
        (folder / "boxes" / f"rank-{number}-incarnation-0.box").touch()
    for number in range(1500):
        (run_dir / f"job-{number}" / "faults").mkdir(parents=True)
    status, output = launcher.run(bounded([run_dir]), env=plain())
    assert status == 0, output
    assert "1000 jobs" in output
    assert "2744 older black boxes of 3000" in launcher.run(bounded([folder]), env=plain())[1]


def test_evidence_that_is_deep_wide_or_long(run_dir: Path, launcher: Launcher) -> None:
    diagnosis = {"event": "diagnosis", "kind": "STOPPED", "fault": 1, "evidence": "faults/1.json"}
    folder = write(run_dir / "job", diagnosis)
    (folder / "faults").mkdir()
    file = folder / "faults" / "1.json"
    for content in (
        b'{"x":' + b"[" * 900 + b"]" * 900 + b"}",
        b"[" * 100_000,
        b"[" + b"[]," * MIB + b"1]",
        b'"' + b"x" * MIB + b'"',
    ):
        file.write_bytes(b'{"evidence":{"1":' + content + b"}}")
        for words in ([], ["--json"]):
            status, output = launcher.run(bounded([run_dir, *words]), env=plain())
            assert (status, "Traceback" in output) == (0, False), output[-500:]
    os.truncate(file, 5 << 30)
    status, output = launcher.run(bounded([run_dir]), env=plain())
    assert (status, "it is larger than 64 MiB" in output) == (0, True)


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_what_a_neighbour_puts_into_shared_memory(launcher: Launcher, run_dir: Path) -> None:
    made = [Path("/dev/shm") / f"taskd-{os.getpid()}-{end}" for end in ("\x1b[2Jx", "loop", "dangling")]
    made[0].mkdir()
    os.mkfifo(made[0] / "box-0-0")
    made[1].symlink_to(made[1].name)
    made[2].symlink_to("nowhere")
    try:
        for path in made:
            os.chown(path, 54321, 54321, follow_symlinks=False)
        kill = ["chaos", "kill", "0", "--run-dir", str(run_dir)]  # there is none: jobs of other users are no targets
        for words in (["chaos", "list"], kill, ["blackbox", str(write(run_dir / "job"))]):
            status, output = launcher.run(["python", "-m", "taskd", *words], env=plain())
            assert status in (0, 1)
            assert harmless(output)
            assert "Traceback" not in output
    finally:
        (made[0] / "box-0-0").unlink()
        made[0].rmdir()
        for path in made[1:]:
            path.unlink()
