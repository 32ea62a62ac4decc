"""Jobs of four ranks in which a bit of a parameter flips in one rank's memory.

There are no copies, so the effects on the others' weights stay. `tests.sharded.scenes` has jobs that go back to copies,
and end as if undisturbed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.play import Run, play
from tests.sharded.scenes import CORRUPTED

ODD = CORRUPTED.kills[0].rank


def played(folder: Path, **environment: str) -> Run:
    script = replace(CORRUPTED, backup_every=-1).script(kills=True)
    merged = {**dict(script.environment), **environment}
    run = play(replace(script, environment=tuple(merged.items())), folder / "run", taskd=True)
    assert run.status == 0, run.output[-3000:]
    return run


def found(run: Run) -> list[dict[str, Any]]:
    return [told for told in run.named("diagnosis") if told["kind"] == "CORRUPTED"]


def states(run: Run) -> list[Any]:
    """Return each rank's final state."""
    return [run.results[rank]["tensors"] for rank in range(4)]


@pytest.mark.slow
def test_the_odd_rank_is_replaced_and_all_replicas_are_equal_again(tmp_path: Path) -> None:
    run = played(tmp_path)
    assert [told["culprits"] for told in found(run)] == [[ODD]]
    (recovered,) = run.named("recovered")
    assert (list(recovered["replaced"]), recovered["restart"], recovered["steps_redone"]) == ([str(ODD)], False, 0)
    first, *others = states(run)
    assert all(other == first for other in others)


@pytest.mark.thorough
@pytest.mark.slow
def test_unless_the_job_wants_it_the_odd_rank_is_only_named(tmp_path: Path) -> None:
    """The log and the journal name it once. It goes on, and stays odd."""
    run = played(tmp_path, TASKD_CORRUPTION_RECOVERY="off")
    assert [told["culprits"] for told in found(run)] == [[ODD]]
    assert run.named("recovered") == []
    assert run.output.count(f"silent data corruption: rank {ODD} (node 0) holds another state than ranks") == 1
    ends = states(run)
    assert [end == ends[0] for end in ends] == [rank != ODD for rank in range(4)]
