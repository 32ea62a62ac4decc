"""The speed at which a device multiplies matrices, and the check of its products.

Rules:

1. The answer is known beforehand: A = s·t', B = (t·w)·r' with signs t and w, so A·B = sum(w)·s·r'. Every factor and
   every intermediate sum is exact, of bf16 too with sums in fp32. So one wrong term in one element shows.
2. The rate is work by the wall clock over rounds of one period of a CPU quota, so every stop of the process counts. The
   median of rounds counts. Rounds that differ are followed by more, so a neighbour's short burst does not count.
3. On the CPU each of this process's cores has a thread that waits for no other. With a barrier between threads, a
   neighbour on one core would look like a machine of a tenth of the speed.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import torch

from taskd.adaptors.nodecheck.devices import Device
from taskd.adaptors.nodecheck.throttling import waited_s
from taskd.errors import ProbeError

ROUND_S: Final = 0.1
"""One period of a CPU quota, Linux' default, in seconds."""
_FEWEST_ROUNDS: Final = 2
_MOST_ROUNDS: Final = 5
_AGREEMENT: Final = 0.1
_BATCH_S: Final = 0.02
_CPU_SIZE: Final = 384
_DEVICE_SIZE: Final = 8192
_BALANCE: Final = 32
"""The value of sum(w): small, because rounding would hide a single wrong term in a large one."""


@dataclass(frozen=True)
class Computed:
    """Rate of all threads of this process together, and the share of the time that they waited for a CPU."""

    tflops: float
    waited: float


@dataclass
class _Product:
    """One multiplication with a known answer, on its own memory."""

    left: torch.Tensor
    right: torch.Tensor
    expected: torch.Tensor
    out: torch.Tensor

    @classmethod
    def on(cls, device: torch.device) -> "_Product":
        cpu = device.type == "cpu"
        n, kind = (_CPU_SIZE, torch.float32) if cpu else (_DEVICE_SIZE, torch.bfloat16)
        places = torch.arange(n)
        rows = (1 + places % 4 / 4) * _signs(places, 3)
        columns = (1 + places // 4 % 4 / 4) * _signs(places, 5)
        inner = _signs(places, 7)
        weights = torch.where(places < (n + _BALANCE) // 2, 1.0, -1.0).roll(n // 3)
        return cls(
            torch.outer(rows, inner).to(device, kind),
            torch.outer(inner * weights, columns).to(device, kind),
            (torch.outer(rows, columns) * _BALANCE).to(device, kind),
            torch.empty(n, n, dtype=kind, device=device),
        )

    @property
    def operations(self) -> float:
        return 2.0 * self.left.shape[0] ** 3

    def run(self, count: int = 1) -> None:
        for _ in range(count):
            torch.mm(self.left, self.right, out=self.out)

    def check(self) -> None:
        if not torch.equal(self.out, self.expected):
            wrong = int((self.out != self.expected).sum())
            raise ProbeError(
                f"{self.out.device} computes wrongly: {wrong} of {self.out.numel()} elements of a matrix product are "
                "not what they must be; take the device out of service"
            )


def _signs(places: torch.Tensor, seed: int) -> torch.Tensor:
    """Return signs, +1 and -1, without a pattern and the same everywhere."""
    return 1.0 - 2.0 * ((places + seed) * 2654435761 >> 16 & 1)


def compute(device: Device, local_world_size: int) -> Computed:
    """Measure the rate of a device. Raise `ProbeError` if a product is wrong."""
    if device.kind == "cpu":
        threads = max(1, len(os.sched_getaffinity(0)) // local_world_size)
        return _rounds(device, [_Product.on(device.torch) for _ in range(threads)], batch=1)
    product = _Product.on(device.torch)
    product.run()
    product.check()  # waits for the product, like `item` of any kind
    start_s = time.perf_counter()
    product.run()
    device.synchronize()
    return _rounds(device, [product], batch=max(1, int(_BATCH_S / (time.perf_counter() - start_s))))


def _rounds(device: Device, products: list[_Product], batch: int) -> Computed:
    for product in products:
        product.run()  # the first one makes the library's plans
    results: list[Computed] = []
    while len(results) < _FEWEST_ROUNDS or (len(results) < _MOST_ROUNDS and not _agree(results)):
        results.append(_round(device, products, batch))
    return Computed(median(one.tflops for one in results), median(one.waited for one in results))


def _agree(results: list[Computed]) -> bool:
    rates = [one.tflops for one in results[-_FEWEST_ROUNDS:]]
    return min(rates) >= (1 - _AGREEMENT) * max(rates)


@dataclass
class _Share:
    device: Device
    product: _Product
    batch: int
    rate: float = 0.0
    waited: float = 0.0
    error: Exception | None = field(default=None)

    def work(self) -> None:
        torch.set_num_threads(1)
        try:
            self.device.select()  # each thread has a current device of its own
            self._work()
        except (ProbeError, RuntimeError) as error:
            self.error = error

    def _work(self) -> None:
        done, waited, start_s = 0, waited_s(), time.perf_counter()
        elapsed_s = 0.0
        while elapsed_s < ROUND_S:
            self.product.run(self.batch)
            self.product.check()
            done += self.batch
            elapsed_s = time.perf_counter() - start_s
        self.rate = done * self.product.operations / elapsed_s / 1e12
        self.waited = (waited_s() - waited) / elapsed_s


def _round(device: Device, products: list[_Product], batch: int) -> Computed:
    shares = [_Share(device, product, batch) for product in products]
    threads = [threading.Thread(target=share.work, name="taskd-compute", daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for share in shares:
        if share.error is not None:
            raise share.error
    return Computed(sum(share.rate for share in shares), max(share.waited for share in shares))
