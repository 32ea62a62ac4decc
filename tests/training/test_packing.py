"""Transfer of a state: copies, limits on bytes in flight, and no early reuse of memory."""

from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import nn

from taskd.adaptors.training import packing, tree
from taskd.adaptors.training.state import TrainState

SMALL = 64 * 1024
LARGE = 512 * 1024


class LateLink:
    """Link that moves bytes only when they are waited for, as late as a link may."""

    digest = ""
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.bytes: deque[bytes] = deque()
        self.sent: list[int] = []
        self.under_way = 0
        self.most = 0
        self.copied: set[int] = set()

    def send(self, tensor: torch.Tensor) -> Callable[[], object]:
        self.sent.append(tensor.data_ptr())
        self._begin()

        def wait() -> None:
            self.bytes.append(tree.bytes_of(tensor))
            self.under_way -= 1

        return wait

    def receive(self, tensor: torch.Tensor) -> Callable[[], object]:
        self.copied.add(tensor.data_ptr())
        self._begin()

        def wait() -> None:
            tree.as_bytes(tensor).copy_(torch.frombuffer(bytearray(self.bytes.popleft()), dtype=torch.uint8))
            self.under_way -= 1

        return wait

    def _begin(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)


class Weights(nn.Module):
    """Tensors of one size, and one tensor with another memory order."""

    def __init__(self, count: int, size_bytes: int) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.randn(size_bytes // 4)) for _ in range(count))
        self.turned = nn.Parameter(torch.randn(400, 300).t())


def sent(model: nn.Module) -> LateLink:
    link = LateLink()
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    packing.send(*packing.pack(state._recovery), link)
    return link


def received(link: LateLink, model: nn.Module) -> None:
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    packing.fill(state._recovery, link, 0)


@pytest.mark.parametrize(("count", "size_bytes"), [(300, LARGE), (700, SMALL)])
def test_state_arrives_whole_over_a_late_link(count: int, size_bytes: int) -> None:
    donor, receiver = Weights(count, size_bytes), Weights(count, size_bytes)
    received(sent(donor), receiver)
    for ours, theirs in zip(receiver.parameters(), donor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_large_tensors_go_from_memory_to_memory() -> None:
    donor, receiver = Weights(10, LARGE), Weights(10, LARGE)
    link = sent(donor)
    assert {tensor.data_ptr() for tensor in donor.all} <= set(link.sent)
    received(link, receiver)
    assert {tensor.data_ptr() for tensor in receiver.all} <= link.copied


def test_many_large_tensors_are_under_way_at_once() -> None:
    link = sent(Weights(300, LARGE))
    assert link.most == packing._AT_ONCE > packing._COPIES_AT_ONCE


def test_few_copies_are_under_way_at_once() -> None:
    link = sent(Weights(700, SMALL))
    assert link.most == packing._COPIES_AT_ONCE
