"""A rank waits for a warm process only as long as a cold one would not be ready sooner."""

from taskd.core.warm_starts import FORK_S, LEAST_IMPORT_S, Warming, wait_s


def test_a_finished_template_is_given_time_to_fork() -> None:
    assert wait_s(Warming(forks=True)) == FORK_S


def test_without_a_template_nobody_waits() -> None:
    assert wait_s(Warming()) <= 0


def test_a_template_that_imports_is_waited_for() -> None:
    assert wait_s(Warming(importing_s=3.0)) == LEAST_IMPORT_S - 3.0


def test_a_template_that_takes_too_long_is_not_waited_for() -> None:
    assert wait_s(Warming(importing_s=LEAST_IMPORT_S)) <= 0


def test_a_job_that_starts_slowly_gives_its_template_as_much_time() -> None:
    assert wait_s(Warming(importing_s=30.0, first_start_s=40.0)) == 50.0
    assert wait_s(Warming(importing_s=81.0, first_start_s=40.0)) < 0
