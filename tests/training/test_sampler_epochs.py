"""A script that counts its sampler's epochs itself continues with the recorded epoch within `state.epochs()`.

Runs are cut and compared as in `test_places`.
"""

import weakref
from typing import Any

import pytest

from taskd.adaptors.training.data.passes import Pass
from taskd.adaptors.training.data.sampler_epochs import SamplerEpochs
from taskd.adaptors.training.state import TrainState
from tests.training.loader_kinds import PER_EPOCH
from tests.training.test_places import EPOCHS, Log, after, disturbed, undisturbed, work

_calls: weakref.WeakKeyDictionary[TrainState, int] = weakref.WeakKeyDictionary()


def counted(state: TrainState, log: Log, cut: tuple[int, str]) -> None:
    """Set the sampler's epoch to the passes that this process has started, as a wrapper around the loader does."""
    for epoch in state.epochs(EPOCHS):
        state.loader.sampler.set_epoch(_calls.setdefault(state, 0))
        _calls[state] += 1
        for batch in state.loader:
            work(state, log, epoch, batch, cut)


@pytest.mark.parametrize("newcomer", [False, True], ids=["survivor", "newcomer"])
@pytest.mark.parametrize("kind", ["distributed", "own epochs"])
def test_passes_that_the_script_counts(kind: str, newcomer: bool) -> None:
    whole = undisturbed(kind, counted, None)
    for cut in [(2, "working"), (PER_EPOCH, "committed"), (PER_EPOCH, "working"), (PER_EPOCH + 2, "committed")]:
        step, log = disturbed(kind, counted, None, cut, newcomer=newcomer)
        assert log == after(whole, step), cut


class Sampler:
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Bare:
    epoch = 0


def begun(sampler: Any, epoch: int) -> SamplerEpochs:
    """Return the epochs after a resume of epoch 4, in a script that starts another epoch."""
    sampler.epoch = epoch
    epochs = SamplerEpochs("loader", lambda: [sampler], lambda: 20)
    assert epochs.is_in(Pass(1, number=4, epoch=4, loop=4, over=False))
    assert sampler.epoch == 4
    return epochs


@pytest.mark.parametrize("kind", [Sampler, Bare])
def test_each_later_epoch_of_the_count_is_put_right(kind: Any) -> None:
    sampler = kind()
    epochs = begun(sampler, 1)
    for epoch in (2, 3):
        sampler.epoch = epoch
        assert epochs.of_next() == sampler.epoch == epoch + 3


def test_an_epoch_that_is_no_count_of_passes_is_the_scripts() -> None:
    """The step, for instance, is right by itself in each later pass."""
    sampler = Sampler()
    epochs = begun(sampler, 7)
    for epoch in (15, 16):
        sampler.epoch = epoch
        assert epochs.of_next() == sampler.epoch == epoch


def test_an_epoch_that_is_the_step_is_no_count() -> None:
    sampler = Sampler()
    sampler.epoch = 20
    epochs = SamplerEpochs("loader", lambda: [sampler], lambda: 20)
    assert not epochs.is_in(Pass(1, number=4, epoch=4, loop=4, over=False))
    assert sampler.epoch == 20


def test_an_epoch_that_is_not_the_number_of_its_pass_is_no_count() -> None:
    sampler = Sampler()
    epochs = SamplerEpochs("loader", lambda: [sampler], lambda: 20)
    assert not epochs.is_in(Pass(1, number=4, epoch=16, loop=4, over=False))


class Fixed:
    @property
    def epoch(self) -> int:
        return 1


class OtherWords(Sampler):
    def set_epoch(self, epoch: int, rank: int) -> None:  # type: ignore[override]
        raise AssertionError


@pytest.mark.parametrize("kind", [Fixed, OtherWords])
def test_a_sampler_that_takes_no_epoch_begins_another_pass(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    epochs = SamplerEpochs("loader", lambda: [kind()], lambda: 20)
    assert not epochs.is_in(Pass(1, number=4, epoch=4, loop=4, over=False))
    assert "epoch 4 of the sampler of loader cannot be set" in caplog.text


@pytest.mark.parametrize(("recorded", "set_now"), [(4, None), (None, 4)])
def test_a_sampler_that_has_no_epoch_any_more_begins_another_pass(recorded: int | None, set_now: int | None) -> None:
    sampler = Sampler()
    sampler.epoch = set_now  # type: ignore[assignment]
    epochs = SamplerEpochs("loader", lambda: [sampler], lambda: 20)
    assert not epochs.is_in(Pass(1, number=4, epoch=recorded, loop=4, over=False))


def test_outside_of_the_states_epochs_another_epoch_is_another_pass(caplog: pytest.LogCaptureFixture) -> None:
    sampler = Sampler()
    epochs = SamplerEpochs("loader", lambda: [sampler], lambda: 20)
    assert not epochs.is_in(Pass(1, number=4, epoch=4, over=False))
    assert "loader stands in epoch 4, and the script begins epoch 0 again" in caplog.text
    assert sampler.epoch == 0


def test_a_sampler_that_counts_its_epochs_is_left_alone() -> None:
    sampler = Sampler()
    epochs = SamplerEpochs("loader", lambda: [sampler], lambda: 20)
    assert epochs.is_in(Pass(1, number=4, epoch=4, loop=4, over=False, counted=["0.epoch"]))
    assert sampler.epoch == 0
