"""Digests of a step's content, by which two runs of the same step are compared.

Nothing of the state is copied. On a device each tensor is read once, where it is.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch

from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.fingerprints import Fingerprint, of_random_numbers
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.shards import local

_NONE: Final = "none"
_NOISE: Final = 1e-3
"""Largest noise, as a share of the norm of all gradients. Sums in another order change it by some 1e-6, in bfloat16 by
some 1e-4.

One gradient's own norm is a worse measure: that of the bias of attention's keys is zero but for rounding.
"""


class Aspect(Enum):
    """Compared aspect of a step, in the order of the search for a difference. The value names it in a message."""

    PARAMETERS = "the parameter"
    HYPERPARAMETERS = "the hyperparameters of"
    BUFFERS = "the buffer"
    NUMBERS = "the random numbers of"
    GRADIENTS = "the gradient of"


@dataclass(frozen=True)
class StepDifference:
    """First difference between two snapshots."""

    aspect: Aspect
    name: str

    def __str__(self) -> str:
        return f"{self.aspect.value} {self.name}"


@dataclass(frozen=True)
class StepDigests:
    """Digests before the first optimizer of a step changes anything: by aspect, and by the name of each item."""

    digests: Mapping[Aspect, Mapping[str, str]]
    norms: Mapping[str, float]
    """Norms of the gradients, where kernels need not be deterministic; else none."""

    @classmethod
    def of(cls, parts: Parts, optimizer: torch.optim.Optimizer | None = None) -> "StepDigests":
        """Take the digests of the present step. Tensors that cannot be read (sparse, meta) are left out.

        If `optimizer` is given, it is about to step. Gradients of other parameters may be left from the step before: a
        GAN's generator gets some when its discriminator is trained, and is cleared of them later.
        """
        parameters = dict(_named(parts, "named_parameters"))
        parameters |= _of_optimizers(parts, {id(one) for one in parameters.values()})
        groups = () if optimizer is None else optimizer.param_groups
        own = {id(one) for group in groups for one in group["params"] if one.grad is not None}
        counted = {name: one for name, one in parameters.items() if not own or id(one) in own}
        return cls(
            {
                Aspect.PARAMETERS: {name: _digest(one) for name, one in parameters.items()},
                Aspect.HYPERPARAMETERS: dict(hyperparameters(parts)),
                Aspect.BUFFERS: {name: _digest(one) for name, one in _named(parts, "named_buffers")},
                Aspect.NUMBERS: of_random_numbers(),
                Aspect.GRADIENTS: {name: _digest(one.grad) for name, one in counted.items()},
            },
            {name: _norm(one) for name, one in counted.items() if _may_vary(one)},
        )

    @property
    def has_gradients(self) -> bool:
        """True if there are gradients that could be read."""
        return any(one not in ("", _NONE) for one in self.digests[Aspect.GRADIENTS].values())

    def is_noise(self, other: "StepDigests") -> bool:
        """Return whether all differences are small ones of gradients, as of kernels that add up in another order."""
        found = self.first_difference(other)
        if found is None or found.aspect is not Aspect.GRADIENTS:
            return False
        most = _NOISE * max(math.hypot(*self.norms.values()), math.hypot(*other.norms.values()))
        return all(abs(norm - other.norms.get(name, math.nan)) <= most for name, norm in self.norms.items()) and all(
            name in self.norms
            for name, one in self.digests[Aspect.GRADIENTS].items()
            if one != other.digests[Aspect.GRADIENTS].get(name)
        )

    def first_difference(self, other: "StepDigests") -> StepDifference | None:
        """Return the first difference, in the order of `Aspect`; None if there is none."""
        for aspect in Aspect:
            ours, theirs = self.digests[aspect], other.digests[aspect]
            for name in sorted(ours.keys() | theirs.keys()):
                if ours.get(name) != theirs.get(name):
                    return StepDifference(aspect, name)
        return None


def _named(parts: Parts, method: str) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for part, value in parts.replicated.items():
        if isinstance(value, torch.nn.Module):
            for name, tensor in getattr(value, method)():
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{part}.{name}", tensor


def _of_optimizers(parts: Parts, seen: set[int]) -> dict[str, Any]:
    """Return the optimizers' parameters that no module has: the masters of ZeRO, which hold the gradients, too."""
    found: dict[str, Any] = {}
    for part, value in parts.replicated.items():
        groups = value.param_groups if isinstance(value, torch.optim.Optimizer) else ()
        own = [one for group in groups for one in group["params"] if id(one) not in seen]
        found |= {f"{part}, parameter {number}": one for number, one in enumerate(own)}
    return found


def hyperparameters(parts: Parts) -> Iterator[tuple[str, str]]:
    """Yield the name of each optimizer's group, and a digest of its hyperparameters."""
    for part, value in parts.replicated.items():
        if isinstance(value, torch.optim.Optimizer):
            for number, group in enumerate(value.param_groups):
                given = {name: one for name, one in group.items() if name != "params"}
                yield f"{part}, group {number}", Fingerprint(given).text


def _digest(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return _NONE
    try:
        return digest([local(tensor)])
    except (RuntimeError, NotImplementedError, TypeError):
        return ""


def _may_vary(parameter: Any) -> bool:
    """Return whether its gradient may differ from one time to the next with the same inputs."""
    return parameter.device.type != "cpu" and not torch.are_deterministic_algorithms_enabled()


def _norm(parameter: Any) -> float:
    if parameter.grad is None:
        return 0.0
    return float(torch.linalg.vector_norm(local(parameter.grad).double()))
