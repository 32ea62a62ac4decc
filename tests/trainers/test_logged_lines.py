"""Lines that loggers receive once."""

from pathlib import Path

from taskd.adaptors.trainers.logged_lines import LoggedLines


def test_a_line_is_given_once(tmp_path: Path) -> None:
    lines = LoggedLines(tmp_path / "lines", joins=False)
    lines.at(3)
    assert [lines.takes(), lines.takes()] == [True, True]
    lines.at(3)  # the lines after the commit are repeated
    assert [lines.takes(), lines.takes(), lines.takes()] == [False, False, True]
    lines.at(4)
    assert lines.takes()


def test_whoever_takes_the_rank_over_gives_none_again(tmp_path: Path) -> None:
    LoggedLines(tmp_path / "lines", joins=False).at(0)
    dead = LoggedLines(tmp_path / "lines", joins=False)
    dead.at(7)
    dead.takes()
    newcomer = LoggedLines(tmp_path / "lines", joins=True)
    newcomer.at(7)
    assert [newcomer.takes(), newcomer.takes()] == [False, True]


def test_steps_that_copies_go_back_behind_are_not_logged_again(tmp_path: Path) -> None:
    lines = LoggedLines(tmp_path / "lines", joins=False)
    lines.at(9)
    lines.takes()
    lines.at(6)
    assert not lines.takes()


def test_all_are_new_where_all_start_anew(tmp_path: Path) -> None:
    former = LoggedLines(tmp_path / "lines", joins=False)
    former.at(9)
    former.takes()
    anew = LoggedLines(tmp_path / "lines", joins=False)
    anew.at(1)
    assert anew.takes()


def test_without_a_file_it_is_known_while_the_process_lives() -> None:
    lines = LoggedLines(None, joins=False)
    lines.at(2)
    assert lines.takes()
    lines.at(2)
    assert not lines.takes()
