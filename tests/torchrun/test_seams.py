"""The table of seams against the installed torch, and how each kind of misfit is refused."""

import pytest

from taskd.adaptors.torchrun.seams import AGENT, SEAMS, Fit, Seam, verify
from taskd.errors import PatchError


def test_the_installed_torch_has_every_seam() -> None:
    verify()


def test_every_override_stands_in_the_table() -> None:
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    from taskd.adaptors.torchrun.agent import TaskdElasticAgent
    from taskd.adaptors.torchrun.host import TaskdContext

    listed = {seam.attribute for seam in SEAMS}
    for ours, stock in ((TaskdElasticAgent, "LocalElasticAgent"), (TaskdContext, SubprocessContext.__name__)):
        parent = ours.__mro__[1]
        overrides = {name for name in vars(ours) if name in dir(parent) and callable(vars(ours)[name])} - {"__init__"}
        assert {f"{stock}.{name}" for name in overrides} <= listed


@pytest.mark.parametrize(
    ("seam", "text"),
    [
        (
            Seam(AGENT, "LocalElasticAgent._start_workers", Fit.EXACT, ("self",)),
            r"takes \(self, worker_group\), expected",
        ),
        (Seam(AGENT, "LocalElasticAgent", Fit.ACCEPTS, ("spec", "colour")), "differing in: colour"),
        (Seam(AGENT, "LocalElasticAgent", Fit.SETS, ("_colour",)), "has another constructor"),
        (Seam(AGENT, "LocalElasticAgent._paint", Fit.EXACT, ("self",)), "found no LocalElasticAgent._paint"),
        (Seam("torch.distributed.elastic.absent", "x", Fit.EXACT, ()), "found no x"),
    ],
)
def test_a_misfit_is_refused_with_what_was_found_and_the_remedy(seam: Seam, text: str) -> None:
    with pytest.raises(PatchError, match=text) as caught:
        verify((*SEAMS[:2], seam))
    assert "torchrun is left as it was: install a taskd for this torch" in str(caught.value)
