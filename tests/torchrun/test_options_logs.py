"""torchrun's options on logs: the same files, the same console, with and without taskd."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from taskd.adaptors.torchrun.logs import spare_earlier
from tests.torchrun.conftest import Play
from tests.torchrun.twins import PROGRAMS, Launch, launch

LOGS = "--log-dir={folder}/logs"

CASES: dict[str, Launch] = {
    "redirects": launch(LOGS, "--redirects=3", "{observer}"),
    "redirects of single ranks": launch(LOGS, "-r", "0:1,1:2", "{observer}"),
    "tee": launch(LOGS, "--tee=3", "{observer}"),
    "tee of single ranks": launch(LOGS, "-t", "1:3", "--redirects=0:2", "{observer}"),
    "ranks filter": launch(LOGS, "--local-ranks-filter=1", "{observer}"),
    "ranks filter and tee": launch(LOGS, "--local-ranks-filter=0", "--tee=3", "{observer}"),
    "duplicates": launch(
        LOGS,
        "--tee=3",
        "--duplicate-stdout-filters=rank 1,nothing",
        "--duplicate-stderr-filters=last line",
        "{observer}",
    ),
    "prefix": launch(LOGS, "--tee=1", "{observer}", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${rank}/${local_rank}> "),
    "nowhere": launch("--log-dir=/dev/null", "{observer}"),
    "log directory is a file": launch("--log-dir={observer}", "{observer}"),
}


FILES = {
    "redirects": {"stdout.log", "stderr.log"},
    "redirects of single ranks": {"stdout.log", "stderr.log"},
    "tee": {"stdout.log", "stderr.log"},
    "tee of single ranks": {"stdout.log", "stderr.log"},
    "ranks filter and tee": {"stdout.log", "stderr.log"},
    "duplicates": {"stdout.log", "stderr.log", "filtered_stdout.log", "filtered_stderr.log"},
    "prefix": {"stdout.log"},
}
"""Names of the files that are written to."""
PLUGIN = PROGRAMS / "plugin" / "loud.py"
LOGS_SPECS = launch(LOGS, "--logs-specs=loud", "--tee=1", "{observer}", program=str(PROGRAMS / "plugged.py"))


def test_an_attempt_of_torchruns_own_spares_what_lies_there(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path))
    environment = {0: {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "0"}}
    specs.reify(environment)
    (run,) = tmp_path.iterdir()
    for text in ("first", "second"):
        replaced = run / "attempt_1" / "3"
        replaced.mkdir(parents=True)
        (replaced / "stdout.log").write_text(text)
        spare_earlier(specs, 1)
        specs.reify({0: {**environment[0], "TORCHELASTIC_RESTART_COUNT": "1"}})
        assert sorted(path.name for path in (run / "attempt_1").iterdir()) == ["0"]
        (run / "attempt_1" / "0").rmdir()
        (run / "attempt_1").rmdir()
    assert [(run / f"attempt_1.{number}" / "3" / "stdout.log").read_text() for number in (1, 2)] == ["first", "second"]


@pytest.mark.parametrize("name", CASES)
def test_files_and_console(play: Play, name: str) -> None:
    pair = play(CASES[name])
    pair.check()
    assert {Path(file).name for file in pair.stock.files if pair.stock.files[file]} == FILES.get(name, set())


def test_logs_specs_of_a_plugin(play: Play, tmp_path: Path) -> None:
    """Another package names the place of the logs, as its entry point in the group `torchrun.logs_specs`."""
    shutil.copy(PLUGIN, tmp_path)
    metadata = tmp_path / "loud-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: loud\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[torchrun.logs_specs]\nloud = loud:LoudLogsSpecs\n")
    pair = play(replace(LOGS_SPECS, env={"PLUGINS": str(tmp_path)}))
    pair.check()
    assert {Path(file).name for file in pair.stock.files} == {"loud.log"}
    assert "stdout: [default1]:first line of rank 1, attempt 0, on stdout" in pair.stock.console
