"""A job's records are bounded: a node that reports a change ten times a second for a year fills no disk."""

from pathlib import Path

import pytest

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.findings import Diagnosis, Finding, Kind
from taskd.core.recovery import Diagnosed
from taskd.runtime.folders.ownfolder import OwnFolder
from taskd.runtime.manager import faultfolder
from taskd.runtime.manager.faultfolder import FaultFolder
from taskd.runtime.manager.journal import Journal, most_bytes
from taskd.runtime.records.faultfile import read_evidence
from taskd.runtime.records.timeline import read_job
from taskd.wire.kinds import JobRank, NodeRank

MOST = 100_000


def diagnosed(fault: int, evidence: dict[JobRank, Evidence]) -> Diagnosed:
    rank = JobRank(7)
    finding = Finding(rank, Kind.STOPPED, "it stands")
    diagnosis = Diagnosis(Kind.STOPPED, (rank,), (), "rank 7 stands", (finding,))
    return Diagnosed(
        fault=fault, diagnosis=diagnosis, evidence=evidence, hang=None, since_s=0.0, step=1, generation=0, reported=True
    )


def test_a_node_that_always_changes_fills_no_disk(run_dir: Path) -> None:
    journal = Journal(run_dir, "job", most=MOST)
    journal.write("manager started", job_id="job")
    for number in range(5000):
        journal.write("standbys", node_rank=0, count=number)
    journal.diagnosis(diagnosed(1, {}))
    journal.close()
    files = sorted(path.name for path in journal.folder.iterdir() if path.is_file())
    assert files == ["journal.jsonl", "journal.old.jsonl", "lock"]
    assert sum(path.stat().st_size for path in journal.folder.glob("*.jsonl")) <= 2 * MOST
    assert [fault.number for fault in read_job(journal.folder).faults] == [1]


def test_a_reader_goes_on_in_the_older_part(run_dir: Path) -> None:
    journal = Journal(run_dir, "job", most=MOST)
    journal.write("manager started", job_id="job")
    journal.diagnosis(diagnosed(1, {}))
    for number in range(1000):
        journal.write("standbys", node_rank=0, count=number)
    journal.close()
    assert (journal.folder / "journal.old.jsonl").exists()
    found = read_job(journal.folder)
    assert ([fault.number for fault in found.faults], found.managers, found.omitted) == ([1], 1, ())


def test_a_new_manager_knows_how_full_it_is(run_dir: Path) -> None:
    for _ in range(40):
        journal = Journal(run_dir, "job", most=MOST)
        for number in range(100):
            journal.write("standbys", node_rank=0, count=number)
        journal.close()
    assert sum(path.stat().st_size for path in journal.folder.glob("*.jsonl")) <= 2 * MOST


def test_a_thousand_recoveries_of_100000_ranks_fit() -> None:
    pids = len('"99999": 4194304, ') * 100_000
    assert 1000 * pids < 2 * most_bytes(100_000)


def test_faults_that_are_invented_leave_the_newest(run_dir: Path) -> None:
    job = OwnFolder(run_dir / "job")
    folder = FaultFolder(job, most_files=10, most_bytes=4000)
    cost = 0
    for number in range(1, 101):
        told = diagnosed(number, {JobRank(7): Evidence(NodeRank(0))})
        cost += folder.write(number, {"job_id": "job"}, told.diagnosis, told.evidence)
    files = sorted((run_dir / "job" / "faults").iterdir())
    assert cost == 100 - len(files)
    assert files[-1].name == "0100.json"
    assert 1 <= len(files) <= 10
    assert sum(path.stat().st_size for path in files) <= 4000
    again = FaultFolder(job, most_files=3)
    assert again.newest == 100
    again.write(101, {}, told.diagnosis, told.evidence)
    assert len(list((run_dir / "job" / "faults").iterdir())) == 3
    job.close()


def test_evidence_of_all_ranks_fits_what_is_read(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named ranks come first, and omitted ones are counted."""
    monkeypatch.setattr(faultfolder, "MOST_EVIDENCE_BYTES", 20_000)
    journal = Journal(run_dir, "job")
    journal.write("manager started", job_id="job")
    journal.diagnosis(diagnosed(1, {rank: Evidence(NodeRank(0)) for rank in (*range(7), *range(8, 1000), 7)}))
    journal.close()
    (fault,) = read_job(journal.folder).faults
    record = read_evidence(journal.folder, fault)
    assert record is not None
    assert not record.problem
    assert 7 in record.evidence
    assert 10 < len(record.evidence) < 1000
    assert (journal.folder / "faults" / "0001.json").stat().st_size < 21_000
