"""Check that a benchmark prints the figures that `benchmarks/figures.json` takes from it."""

from benchmarks.figures import read_runs


def recordable(command: str, last: object) -> None:
    """Fail if a figure of this command is not in the last line."""
    (run,) = [run for run in read_runs() if run.command == command]
    run.measured(last, run.date, run.machine, run.commit)
