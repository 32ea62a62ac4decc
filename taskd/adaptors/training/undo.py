"""What a step has changed is undone, where a fault may strike between its changes: several optimizers, or closures.

Rules:

1. With one optimizer that steps once in a commit, nothing can strike in the middle, and nothing is kept.
2. A closure runs forward and backward inside the optimizer's step. torch's optimizers call it before they change
   anything: until it has returned, nothing was changed. With others nothing was while no parameter has another version
   than when the step began. LBFGS changes the parameters between its closures: rule 3.
3. Where a model runs between two steps of one commit (GANs, several critics), ranks meet there. From the second such
   commit on, all that is replicated is copied before the first step, and put back by `apply`.
4. What has changed before the first step, and cannot be put back, makes such a copy worthless: then there is none.
5. Whether a script is such a one is found out in its first commits; then the hooks that are not needed are removed.
"""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.partitions import whole

_COMMITS = 4
"""After so many without need the hooks are removed."""


class Undo:
    """For one training state.

    Args:
        parts: whose replicated ones are copied.
        counts: how many steps each optimizer has begun and done since the last commit, in turn.
        stepping: called before the first of them, in the first commits at least; tells whether a copy is any good.
    """

    def __init__(self, parts: Parts, counts: memoryview, stepping: Callable[[], bool]) -> None:
        self._parts = parts
        self._counts = counts
        self._stepping = stepping
        self._commits = 0
        self._ran = self._exposed = self._closures = self._settled = False
        self.verify: Callable[[], None] | None = None
        """Waits until what a closure's collectives gave is there; None: it is at once."""
        self._begun: dict[int, _Closure | list[int]] = {}  # of each optimizer the newest step with a closure
        self._live: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._plain: list[Any] = []
        self.ready = False
        """Whether the present step can be undone."""
        self.busy = True
        """Whether it wants to hear of commits."""
        self._handles: list[RemovableHandle] = []
        self.stand_last()
        self._runs = [module.register_forward_pre_hook(_calling(self._run, 0)) for module in parts.modules]

    def stand_last(self) -> None:
        """Come behind the hooks that count."""
        for handle in self._handles:
            handle.remove()
        hooks = [_calling(self._before, index) for index in range(len(self._parts.optimizers))]
        pairs = zip(self._parts.optimizers, hooks, strict=True)
        self._handles = [optimizer.register_step_pre_hook(hook) for optimizer, hook in pairs]

    def expose(self) -> None:
        """A trainer knows that ranks meet between two steps of one commit: all is copied, from the next step on."""
        self._exposed = True

    def met(self) -> None:
        """Ranks may meet now, as where a model runs; a trainer says so."""
        self._ran = True

    def untouched(self, index: int) -> bool:
        """Whether the optimizer, which is inside its step, has changed nothing yet."""
        known = self._begun.get(index)
        if isinstance(known, _Closure):
            return known.stands
        return known is not None and known == _versions(self._parts.optimizers[index])

    def forget(self) -> None:
        """The step is committed, or another state has come."""
        self.ready = False
        if not self._settled and (self._commits >= _COMMITS or self._exposed):
            self._settle()

    def end(self) -> None:
        """Nobody trains with this state any more, or by chance later: what is in the middle of a step is TORN then."""
        for handle in (*self._runs, *self._handles):
            handle.remove()
        self._runs.clear()
        self._handles.clear()
        self._copies, self._live, self._plain = [], [], []
        self.ready = self.busy = False

    def apply(self) -> None:
        """Put back what was there before the first step."""
        with torch.no_grad():
            for live, copied in zip(self._live, self._copies, strict=True):
                live.copy_(copied)
        for optimizer, (groups, state) in zip(whole(self._parts.optimizers), self._plain[0], strict=True):
            for group, known in zip(optimizer.param_groups, groups, strict=True):
                group.update(copy.deepcopy(known))
            optimizer.state.clear()
            optimizer.state.update({parameter: dict(values) for parameter, values in state})
        for part, known in self._plain[1]:
            part.load_state_dict(copy.deepcopy(known))
        self.ready = False

    # Inside.

    def _run(self, _index: int, *_: Any) -> None:
        self._ran = True

    def _before(self, index: int, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        given, wrapped = args[1] if len(args) > 1 else kwargs.get("closure"), None
        if given is not None and self._counts[2 * index] - self._counts[2 * index + 1] <= 1:  # else a step inside one
            kind: Any = type(optimizer)
            self._closures = True
            if isinstance(optimizer, torch.optim.LBFGS):
                self._exposed = True
            elif _calls_first(kind):
                self._begun[index] = closure = _Closure(given, optimizer, self.verify)
                wrapped = ((args[0], closure), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closure})
            else:
                self._begun[index] = _versions(optimizer)
        if not self._settled or self._exposed or self._ran:  # else the closure was all that is to be known
            self._step_begins()
        return wrapped

    def _step_begins(self) -> None:
        first = not any(self._counts[1::2])
        if not first and self._ran:
            self._exposed = True
        if first:
            self._commits += 1
            if self._stepping() and self._exposed:
                self._save()
        self._ran = False

    def _settle(self) -> None:
        for handle in self._runs:
            handle.remove()
        self._runs.clear()
        self._settled, self.busy = True, self._exposed
        if not self._exposed and not self._closures:
            for handle in self._handles:
                handle.remove()

    def _save(self) -> None:
        """Copy all that is replicated: tensors of modules and optimizers into memory that is kept, the rest anew."""
        optimizers = [*whole(self._parts.optimizers)]
        found = [tensor for module in self._parts.modules for tensor in (*module.parameters(), *module.buffers())]
        found += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        for optimizer in optimizers:
            for values in optimizer.state.values():
                found += [value for value in values.values() if isinstance(value, torch.Tensor)]
        live = list({id(tensor): tensor.detach() for tensor in found}.values())
        if len(live) != len(self._copies) or any(
            a.shape != b.shape or a.dtype != b.dtype for a, b in zip(live, self._copies, strict=True)
        ):
            self._copies = [torch.empty_like(tensor) for tensor in live]
        self._live = live
        for copied, tensor in zip(self._copies, live, strict=True):
            copied.copy_(tensor)
        tensors = torch.nn.Module | torch.optim.Optimizer
        others = [part for part in self._parts.replicated.values() if not isinstance(part, tensors)]
        self._plain = [
            [(_groups(optimizer), [(p, _kept(v)) for p, v in optimizer.state.items()]) for optimizer in optimizers],
            [(part, copy.deepcopy(part.state_dict())) for part in others],
        ]
        self.ready = True


class _Closure:
    """That of one step of an optimizer, which calls it before it changes anything."""

    def __init__(
        self, closure: Callable[[], Any], optimizer: torch.optim.Optimizer, verify: Callable[[], None] | None
    ) -> None:
        self._closure = closure
        self._verify = verify
        self._first = next(parameter for group in optimizer.param_groups for parameter in group["params"])
        self._version = self._first._version
        self._returned = False

    def __call__(self) -> Any:
        result = self._closure()
        if self._verify is not None:
            self._verify()
        self._returned = True
        return result

    @property
    def stands(self) -> bool:
        """Whether nothing was changed: it has not returned, nor has another hook changed the parameters before."""
        return not self._returned and self._first._version == self._version


@cache
def _calls_first(kind: Any) -> bool:
    """Whether it is one of torch's, with their own `step`."""
    return (kind.step.__module__ or "").startswith("torch.optim.")


def _calling(call: Callable[..., Any], index: int) -> Callable[..., Any]:
    """A plain function, so that what carries it can be copied."""

    def hook(*args: Any) -> Any:
        return call(index, *args)

    return hook


def _versions(optimizer: torch.optim.Optimizer) -> list[int]:
    return [parameter._version for group in optimizer.param_groups for parameter in group["params"]]


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]


def _kept(values: dict[str, Any]) -> dict[str, Any]:
    """The state of one parameter: its tensors are copied elsewhere, lists of them (LBFGS) are new ones each time."""
    return {k: v if isinstance(v, torch.Tensor) else copy.deepcopy(v) for k, v in values.items()}
