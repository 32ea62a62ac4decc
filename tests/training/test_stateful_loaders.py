"""Loaders that keep their position themselves."""

from typing import Any

import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank

SAMPLES, BATCH, EPOCHS = 20, 4, 3
PER_EPOCH = SAMPLES // BATCH


def test_the_epoch_of_a_stateful_loaders_sampler_is_known_before_the_loop_sets_it() -> None:
    """A checkpoint that is written again, before the training function is entered, reads such a loader's state."""

    def made() -> TrainState:
        dataset: Any = range(SAMPLES)
        loader = StatefulDataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset, 1, 0))
        model = torch.nn.Linear(1, 1)
        return TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader)

    def train(state: TrainState, seen: list[Any], commits: int) -> None:
        for epoch in state.epochs(EPOCHS):
            state.loader.sampler.set_epoch(epoch)
            for batch in state.loader:
                seen.append(batch.tolist())
                state.commit()
                if state.step == commits:
                    return

    whole: list[Any] = []
    train(made(), whole, EPOCHS * PER_EPOCH)
    state = made()
    state._recovery.begin(JobRank(0))
    train(state, [], 8)
    payload = state._recovery.position(8)
    newcomer = made()
    seen: list[Any] = []
    newcomer._recovery.begin(JobRank(0))
    with newcomer._recovery.restoring(8):
        pass
    newcomer._recovery.return_to(8, payload)
    newcomer.loader.state_dict()
    train(newcomer, seen, EPOCHS * PER_EPOCH)
    assert seen == whole[8:]
