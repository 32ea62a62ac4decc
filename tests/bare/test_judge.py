"""The judge: results that count as worse than plain torchrun, and results that count as equal."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare.__main__ import ENVIRONMENTS, choose
from tests.bare.gates import compared
from tests.bare.judge import Outcome, Wanted, judge

RESULTS = {rank: {"pid": 10 + rank, "digest": "d", "nofile": [64, 64]} for rank in range(2)}
STOCK = Outcome(0, 5.0, "rank 0 is done\n", "", "", [(0, 10), (1, 11)], RESULTS)
RECOVERED = "fault 1, step 8: Rank 1 was killed by SIGKILL. Therefore recovered in 80 ms by recover-in-place\n"
PROTECTED = dataclasses.replace(
    STOCK, seconds=9.0, console=f"rank 0 is done\n{RECOVERED}", started=[(0, 10), (1, 11), (1, 12)], died=True
)
SENTENCE = "taskd takes no part: found 64 descriptors, expected 96; raise ulimit -n\n"
LEFT = dataclasses.replace(STOCK, console=SENTENCE, before_start=SENTENCE, before_order=SENTENCE)
REFUSED = Outcome(2, 2.0, "error: found x, expected y\nhint: do z\n")
MAY_REFUSE = Wanted(protected=False)
TRACEBACK = "Traceback (most recent call last):\n  File 'x', line 1, in y\nOSError: [Errno 24] Too many open files\n"


@pytest.mark.parametrize(
    ("taskd", "wanted"),
    [
        (PROTECTED, Wanted()),
        (PROTECTED, MAY_REFUSE),
        (LEFT, MAY_REFUSE),
        (REFUSED, MAY_REFUSE),
        (STOCK, Wanted(off=True)),
    ],
)
def test_a_job_as_good_as_under_plain_torchrun_passes(taskd: Outcome, wanted: Wanted) -> None:
    assert judge(STOCK, taskd, wanted) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": None, "seconds": 60.0}, "hangs: no end within 60 s"),
        ({"status": 1}, "ends with 1, plain torchrun with 0"),
        ({"results": {0: RESULTS[0]}}, "rank 1 left no result"),
        ({"results": {**RESULTS, 1: {**RESULTS[1], "digest": "e"}}}, "rank 1: digest is e"),
        (
            {"results": {**RESULTS, 0: {**RESULTS[0], "nofile": [128, 128]}}},
            "rank 0: nofile has [128, 128] more and [64, 64] less",
        ),
        ({"ghosts": 2}, "2 times as a lone process"),
        ({"orphans": ["7 python"]}, "processes outlive torchrun: 7 python"),
        ({"leftovers": ["taskd-1-x"]}, "leaves in /dev/shm: taskd-1-x"),
        ({"seconds": 41.0}, "takes 41.0 s"),
        ({"started": [(0, 10), (0, 13), (1, 11), (1, 12)]}, "rank 0 started 2 times"),
        ({"died": False}, "rank 1 was not killed"),
        ({"console": RECOVERED + TRACEBACK}, "prints a traceback: OSError: [Errno 24] Too many open files"),
        ({"console": RECOVERED + f"[rank1]: {TRACEBACK}"}, "prints a traceback"),
        ({"before_order": "a\nb\nc\n"}, "prints 3 lines before the first fault"),
    ],
)
def test_a_protected_job_that_is_worse_is_found(changes: dict, text: str) -> None:
    wrong = judge(STOCK, dataclasses.replace(PROTECTED, **changes), Wanted())
    assert any(text in one for one in wrong), wrong


def test_silence_without_protection_is_found() -> None:
    silent = dataclasses.replace(PROTECTED, console="", started=[(0, 10), (0, 13), (1, 11), (1, 12)])
    assert any("takes no part and prints nothing of it" in one for one in judge(STOCK, silent, Wanted()))


@pytest.mark.parametrize(
    ("taskd", "wanted", "text"),
    [
        (LEFT, Wanted(), "leaves the job unprotected: taskd takes no part"),
        (dataclasses.replace(LEFT, before_start=""), MAY_REFUSE, "only after the ranks have started"),
        (dataclasses.replace(LEFT, console=f"{SENTENCE}and more\n"), MAY_REFUSE, "prints 2 lines"),
        (REFUSED, Wanted(), "ends with 2 before a rank starts"),
        (dataclasses.replace(REFUSED, status=1), MAY_REFUSE, "ends with 1 before a rank starts"),
        (dataclasses.replace(REFUSED, console=TRACEBACK), MAY_REFUSE, "prints a traceback"),
        (dataclasses.replace(STOCK, console=SENTENCE), Wanted(off=True), "prints while off"),
        (PROTECTED, Wanted(explains="/dev/shm"), "the console has nothing like"),
    ],
)
def test_a_job_that_taskd_does_not_protect_is_judged_by_its_sentence(taskd: Outcome, wanted: Wanted, text: str) -> None:
    wrong = judge(STOCK, taskd, wanted)
    assert any(text in one for one in wrong), wrong


def test_an_environment_without_a_running_torchrun_is_no_environment() -> None:
    assert judge(dataclasses.replace(STOCK, status=1), PROTECTED, Wanted()) == [
        "plain torchrun does not run here (status 1): rank 0 is done"
    ]


def test_a_program_that_fails_under_the_library_is_found_and_one_that_varies_is_not() -> None:
    varies = {"name": "date", "without": "0\n1", "again": "0\n2", "with": "0\n3"}
    breaks = {"name": "true", "without": "0\n", "again": "0\n", "with": "1\nversion `GLIBC_2.34' not found"}
    wrong, facts = compared([varies, breaks], 2)
    assert wrong == ["1 of 2 programs run otherwise", "true: version `GLIBC_2.34' not found"]
    assert facts == {"programs": 2, "different": 1}
    assert compared([varies], 2)[0] == ["only 1 programs ran, expected 2"]


def test_names_are_unique_and_there_are_enough() -> None:
    names = [one.name for one in ENVIRONMENTS]
    assert len(set(names)) == len(names) >= 20
    assert [one.name for one in choose(["no numpy"])] == ["no numpy"]
    assert {one.name for one in choose(["swept", "PID 1"])} == {"TMPDIR swept", "/dev/shm swept", "PID 1"}


def test_the_kernel_refuses_the_calls_that_a_filter_names() -> None:
    refuse = str(Path(__file__).with_name("programs") / "refuse.py")
    code = "import os\ntry:\n    os.pidfd_open(os.getpid())\nexcept OSError as error:\n    print(error.errno)"
    for names in ("kcmp,pidfd_open", "newer-than-423"):
        done = subprocess.run(
            [sys.executable, refuse, "EPERM", names, sys.executable, "-c", code],
            env={"PATH": os.defpath}, capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", ""), names
