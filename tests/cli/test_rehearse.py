"""`taskd run --rehearse` as a user calls it: its verdicts, the lines that it names, and its clean-up."""

from pathlib import Path

import pytest

from tests.rehearsal.catalog import FOLDER, PROGRAMS, SCRIPTS, rehearse, wrong

NAMES = [script.name for script in SCRIPTS]


@pytest.fixture(autouse=True)
def folder_for_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the rehearsals' copies, which must be empty in the end."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(560)
@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_right(name: str, folder_for_copies: Path) -> None:
    (script,) = [one for one in SCRIPTS if one.name == name]
    before = sorted(FOLDER.iterdir())
    status, verdict, said = rehearse(FOLDER / script.script)
    assert not wrong(script, status, verdict), said
    assert sorted(FOLDER.iterdir()) == before
    assert not list(folder_for_copies.glob("taskd-*"))


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_without_a_state_the_three_lines_are_named() -> None:
    status, verdict, _ = rehearse(PROGRAMS / "without_sdk.py")
    assert (status, verdict["why"]) == (1, "it does not use taskd: after a fault all processes start anew")
    texts = [finding["found"] for finding in verdict["findings"]]
    assert texts == [
        "found no TrainState, expected before the training: state = taskd.TrainState(model=model, optimizer=optimizer)",
        "expected around train(): @taskd.resilient(state)",
        "expected as the last line of each step: state.commit()",
    ]
    assert [finding["line"] for finding in verdict["findings"]] == [f"without_sdk.py:{line}" for line in (8, 8, 12)]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(560)
def test_a_script_that_is_not_the_same_twice_is_not_judged() -> None:
    status, verdict, _ = rehearse(PROGRAMS / "not_twice_alike.py")
    assert (status, verdict["verdict"]) == (2, "cannot be judged")
    assert "two undisturbed runs differ in step 1 on rank 0: the data" in verdict["findings"][0]["found"]
    assert "unlike in both runs: the random numbers of" in verdict["findings"][0]["mend"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(560)
def test_a_script_that_fails_by_itself_is_not_judged() -> None:
    status, verdict, _ = rehearse(PROGRAMS / "fails.py")
    assert (status, verdict["why"]) == (2, "it fails without any fault")
    assert verdict["findings"][0]["line"] == "fails.py:13"
    assert verdict["findings"][0]["found"] == "ValueError: there is no data"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(560)
def test_what_taskd_refuses_is_the_reason_with_its_line() -> None:
    status, verdict, _ = rehearse(PROGRAMS / "commits_too_often.py")
    assert (status, verdict["why"]) == (1, "it is refused as it stands")
    assert verdict["findings"][0]["line"] == "commits_too_often.py:23"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(560)
def test_a_line_that_is_printed_otherwise_is_found() -> None:
    status, verdict, _ = rehearse(PROGRAMS / "prints_behind.py")
    assert (status, verdict["why"]) == (1, "weights and data are exact, what it prints is not"), verdict
    assert any(finding["line"] == "prints_behind.py:26" for finding in verdict["findings"])
    assert any("'total'" in note for note in [*verdict["notes"], *(f["found"] for f in verdict["findings"])])


@pytest.mark.thorough
@pytest.mark.timeout(560)
@pytest.mark.parametrize("words", [(), ("once",)])
def test_a_script_dies_behind_its_training_function(words: tuple[str, ...]) -> None:
    status, verdict, said = rehearse(PROGRAMS / "ends.py", arguments=words)
    assert verdict["kills"][-1] == "rank 1 behind the training function, step 24", said
    assert verdict["in_place"] == len(verdict["kills"]) - 1, said
    if words:
        assert (status, verdict["why"]) == (1, "it does not come through the kills"), said
        assert verdict["findings"][0]["line"] == "ends.py:31"
        assert "FileExistsError" in verdict["findings"][0]["found"]
    else:
        assert (status, verdict["verdict"]) == (0, "exact"), said
        assert "all ranks go back to copies; they ended well" in " ".join(verdict["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes=2", "plain_loop.py"], "expected one node"),
        (["--no-python", "plain_loop.py"], "expected a Python script"),
        (["nowhere.py"], "found no script nowhere.py, expected a file"),
        (["--share", "nowhere", "plain_loop.py"], "found no such file or folder below"),
    ],
)
def test_what_cannot_be_rehearsed_is_said_before_anything_runs(words: list[str], said: str) -> None:
    status, _, told = rehearse(FOLDER / words[-1], words[:-1])
    assert status == 2
    assert said in told
    assert len(told.splitlines()) == 1, told
