"""Jobs in torches that differ in one place: they train as under plain torchrun, and the doctor finds the same as they.

`scripts/seams.sh` plays all places of the table; these are one of each kind.
"""

from pathlib import Path

import pytest

from taskd.adaptors.seams.native import FREEING
from taskd.adaptors.seams.parts import IN_LAUNCHER, IN_WORKER
from tests.seams.breaking import Break, Way, breaks
from tests.seams.farm import Farm
from tests.seams.play import Doctor, Outcome, play, sentences
from tests.thorough import everyday

LAUNCHER = "launcher: torch.distributed.elastic.multiprocessing.api:SubprocessContext._poll other parameters"
PYTHON = "worker: torch.distributed.distributed_c10d:_rank_not_in_group renamed _rank_not_in_group"
USED_BY_THE_SDK = "worker: torch.nn.modules.module:Module renamed _call_impl"
_WAIT_SEND = next(seam.attribute for seam in FREEING if "waitSend" in seam.attribute)
SYMBOL = f"freeing from gloo: libtorch_cpu.so:{_WAIT_SEND} renamed {_WAIT_SEND}"
COMPILED = "worker: torch._C._distributed_c10d:ProcessGroup renamed _set_group_desc"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    """Return an environment with another torch."""
    return Farm(tmp_path_factory.mktemp("farm") / "torch")


@pytest.fixture(scope="module")
def plain(farm: Farm) -> Outcome:
    """Run the job under plain torchrun."""
    farm.be_installed()
    outcome = play(farm, on=False)
    assert (outcome.status, outcome.lines) == (0, [])
    return outcome


def find(description: str) -> Break:
    """Return the break with this description."""
    return next(broken for broken in breaks() if str(broken) == description)


@pytest.mark.parametrize(
    "description", everyday([LAUNCHER, PYTHON, USED_BY_THE_SDK, COMPILED, SYMBOL], USED_BY_THE_SDK)
)
def test_a_torch_that_differs_in_one_place(farm: Farm, plain: Outcome, description: str) -> None:
    broken = find(description)
    farm.be(broken)
    outcome = play(farm)
    assert (outcome.status, outcome.digest) == (0, plain.digest), outcome.lines
    (warning,) = outcome.lines
    assert warning.endswith(broken.part.otherwise)
    assert (broken.name or broken.seam.attribute) in warning
    assert Doctor(farm).says() == sentences(outcome)


def test_a_rank_without_seams_is_restarted_with_all_others(farm: Farm, plain: Outcome, tmp_path: Path) -> None:
    farm.be(find(PYTHON))
    outcome = play(farm, f"1:7:{tmp_path}", restarts=1)
    assert (outcome.status, outcome.digest) == (0, plain.digest), outcome.lines
    assert (tmp_path / "died-0").exists()
    assert any(IN_WORKER.otherwise in line for line in outcome.lines)


def test_the_breaks_cover_the_table() -> None:
    """There is a break for each line of the table that can be changed in the installed torch."""
    broken = {(one.seam.module, one.seam.attribute, one.way) for one in breaks()}
    assert {one.part for one in breaks()} >= {IN_LAUNCHER, IN_WORKER}
    assert ("torch.distributed.rendezvous", "_create_c10d_store", Way.RENAMED) in broken
    assert ("torch.distributed.rendezvous", "_create_c10d_store", Way.PARAMETERS) in broken
    assert ("torch._C._distributed_c10d", "Reducer", Way.RENAMED) in broken
