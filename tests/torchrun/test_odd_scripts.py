"""Scripts with rare behaviour, under stock torchrun and with taskd: both must give the same."""

import pytest

from tests.torchrun.conftest import Play
from tests.torchrun.twins import PROGRAMS, Launch, launch

ODD = PROGRAMS / "odd"

SCRIPTS: dict[str, Launch] = {
    "joins all threads": launch(str(ODD / "threads.py")),
    "joins all threads of torch too": launch(str(ODD / "threads.py"), "torch", ranks=1),
    "blocks a signal": launch(str(ODD / "masked.py")),
    "looks at its frames": launch(str(ODD / "frames.py"), ranks=1),
    "looks at its frames as a module": launch("-m", "tests.torchrun.programs.odd.frames", ranks=1),
    "closes all descriptors": launch(str(ODD / "closes.py")),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run_alike(play: Play, name: str) -> None:
    pair = play(SCRIPTS[name])
    pair.check()
    assert set(pair.stock.statuses) == {0}, pair.stock.text
