"""Digests of a rank's state: their content, their time, and no change of the state meanwhile."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training.digests import digest as digest_of_tensors
from taskd.adaptors.training.state import TrainState
from taskd.adaptors.training.trust import verifying
from taskd.adaptors.training.trust.verifying import StateVerifier, held_by
from taskd.errors import ConfigError
from taskd.runtime.worker.pulse import NEVER
from taskd.wire.state import StateDigest

Given = dict[str, Any]


def made(kind: Any = torch.optim.AdamW, **given: Any) -> TrainState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    return TrainState(model=model, optimizer=kind(model.parameters(), lr=0.01), verify="replicas", **given)


def step(state: TrainState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(3, 4) * (state.step + 1)).sum().backward()
    state.optimizer.step()
    state.commit()


def verifier_of(state: TrainState) -> StateVerifier:
    found = state._recovery.replicas.verifier
    assert found is not None
    return found


def trained(state: TrainState, steps: int) -> tuple[StateDigest, ...]:
    verifier = verifier_of(state)
    with state._recovery.replicas.verifying(state.step, lambda: None):
        for _ in range(steps):
            step(state)
    return verifier.digests


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_equal_states_have_equal_digests_of_each_step_that_is_due(kind: Any) -> None:
    one, other = trained(made(kind, every=3), 10), trained(made(kind, every=3), 10)
    assert [digest.step for digest in one] == [3, 6, 9]
    assert one == other
    assert len({digest.weights for digest in one}) == 3


def test_a_bit_of_a_parameter_or_of_the_optimizers_state_shows_and_one_of_a_buffer_does_not() -> None:
    honest = trained(made(every=1), 2)[-1]
    for which, part in (("weights", "weights"), ("exp_avg", "optimizer"), ("running_mean", "")):
        state = made(every=1)
        trained(state, 1)
        with state._recovery.replicas.verifying(state.step, lambda: None):
            state.optimizer.zero_grad()
            state.model(torch.ones(3, 4) * 2).sum().backward()
            state.optimizer.step()
            first = state.model[0].weight
            damaged = {
                "weights": first.data,
                "exp_avg": state.optimizer.state[first]["exp_avg"],
                "running_mean": state.model[1].running_mean,
            }[which]
            damaged.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
            state.commit()
        (found,) = verifier_of(state).digests
        differing = [name for name in ("weights", "optimizer") if getattr(found, name) != getattr(honest, name)]
        assert differing == ([part] if part else []), which


def test_a_restored_optimizer_has_the_same_digest() -> None:
    """The keys of its state come in another order, and its numbers have other types."""
    state = made(every=1)
    trained(state, 2)
    before = verifying._digest(held_by(state._recovery.parts)[1])
    for parameter, kept in state.optimizer.state.items():
        state.optimizer.state[parameter] = dict(reversed(kept.items()))
    assert verifying._digest(held_by(state._recovery.parts)[1]) == before


def test_the_optimizer_waits_until_a_large_state_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "AT_ONCE_BYTES", 0)
    state, may_read, reads = made(every=1), threading.Event(), threading.Event()
    honest, threads = digest_of_tensors, []

    def digest(tensors: Any) -> str:
        threads.append(threading.current_thread())
        reads.set()
        may_read.wait(20)
        return honest(tensors)

    monkeypatch.setattr(verifying, "digest", digest)
    seen: list[bool] = []

    def let_read(*_: Any) -> None:
        seen.append(may_read.is_set())

    state.optimizer.register_step_post_hook(let_read)
    with state._recovery.replicas.verifying(0, lambda: None):
        step(state)
        assert reads.wait(20)
        assert verifier_of(state).digests == (), "the commit has waited for nothing"
        threading.Timer(0.05, may_read.set).start()
        step(state)
    assert seen == [False, True]
    assert [digest.step for digest in verifier_of(state).digests] == [1, 2]
    assert threading.current_thread() not in threads
    monkeypatch.undo()
    assert verifier_of(state).digests == trained(made(every=1), 2)


def test_a_tensor_that_is_changed_while_it_is_read_leaves_the_step_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verifying, "AT_ONCE_BYTES", 0)
    state, may_read = made(every=1), threading.Event()
    honest = digest_of_tensors
    monkeypatch.setattr(verifying, "digest", lambda tensors: (may_read.wait(20), honest(tensors))[1])
    with state._recovery.replicas.verifying(0, lambda: None):
        step(state)
        with torch.no_grad():
            state.model[0].weight.add_(1)
        may_read.set()
    assert verifier_of(state).digests == (StateDigest(step=1, weights="", optimizer=""),)
    assert "change parameters before the commit" in caplog.text


def test_at_a_fault_nobody_waits_and_nothing_is_reported_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "AT_ONCE_BYTES", 0)
    state, may_read, told = made(every=1), threading.Event(), []
    honest = digest_of_tensors
    monkeypatch.setattr(verifying, "digest", lambda tensors: (may_read.wait(20), honest(tensors))[1])
    readings = []

    def train() -> None:
        with state._recovery.replicas.verifying(0, lambda: told.append(1)):
            step(state)
            readings.append(verifier_of(state)._reading)
            raise RuntimeError("a peer is gone")

    with pytest.raises(RuntimeError, match="a peer"):
        train()
    assert (verifier_of(state).digests, verifier_of(state).next) == ((), NEVER)
    may_read.set()
    (reading,) = readings
    assert reading is not None
    reading.wait()
    assert told == []


def test_outside_of_the_training_function_nothing_is_digested() -> None:
    state = made(every=1)
    for _ in range(3):
        step(state)
    assert verifier_of(state).digests == ()


def test_only_the_newest_are_reported() -> None:
    assert [digest.step for digest in trained(made(every=1), 12)] == [9, 10, 11, 12]


def test_a_state_that_nothing_can_read_says_so() -> None:
    model = nn.EmbeddingBag(4, 2, sparse=True)
    state = TrainState(model=model, optimizer=torch.optim.SparseAdam(model.parameters()), verify="replicas", every=1)
    with state._recovery.replicas.verifying(0, lambda: None):
        state.optimizer.state[model.weight]["kept"] = torch.eye(2).to_sparse()
        state.commit()
    (found,) = verifier_of(state).digests
    assert (bool(found.weights), found.optimizer) == (True, "")


def test_an_optimizer_that_is_watched_can_be_copied() -> None:
    state = made(every=1)
    trained(state, 1)
    copied = copy.deepcopy(state.optimizer)
    assert copied.state_dict()["state"].keys() == state.optimizer.state_dict()["state"].keys()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"verify": "checksums"}, "verify is 'checksums', expected 'replicas'"),
        ({"verify": True}, "verify is True"),
        ({"every": 10}, "every is 10 without verify"),
        ({"verify": "replicas", "every": 0}, "every is 0, expected a number of steps from 1 on"),
        ({"verify": "replicas", "every": 2.5}, "every is 2.5"),
        ({"verify": "replicas", "every": True}, "every is True"),
        ({"replica_set": ""}, "replica_set is ''"),
        ({"replica_set": 3}, "replica_set is 3"),
        ({"replica_set": "a\nb"}, "printable"),
        ({"replica_set": "x" * 201}, "1 to 200"),
    ],
)
def test_bad_statements_are_refused(given: Given, says: str) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=says):
        TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **given)


def test_without_a_number_every_hundredth_step_is_digested() -> None:
    state = made()
    with state._recovery.replicas.verifying(150, lambda: None):
        assert verifier_of(state).next == 200


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("size", [1, 7, 4096, (1 << 17) + 3, 3 * (1 << 20) + 5])
def test_the_same_bytes_have_the_same_digest_wherever_they_are(size: int) -> None:
    tensor = torch.randint(256, (size,), dtype=torch.uint8)
    assert digest_of_tensors([tensor]) == digest_of_tensors([tensor.cuda()])
