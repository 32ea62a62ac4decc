"""Undo of a step's changes where a fault may strike between them: several optimizers, or closures.

Rules:

1. If there is one optimizer that steps once per commit, no fault can strike between changes, and nothing is kept.
2. A closure runs the forward and backward pass inside the optimizer's step. torch's optimizers call it before they
   change anything, so nothing has changed until it has returned. With other optimizers nothing has changed while every
   parameter has the version that it had when the step began. LBFGS changes the parameters between its closures: rule 3.
3. Where a model runs between two steps of one commit (GANs, several critics), ranks communicate there. From the second
   such commit on, all replicated parts are copied before the first step, and `apply` restores them.
4. If something has changed before the first step and cannot be put back, such a copy is worthless, and none is made.
5. The first commits show whether a script needs copies. After that, the hooks that it does not need are removed.
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
"""Number of commits without need after which the hooks are removed."""


class Undo:
    """Copies of one training state, by which its present step can be undone.

    Args:
        parts: parts of the state; the replicated ones are copied.
        counts: two numbers per optimizer, in turn: its steps begun and done since the last commit.
        stepping: called before the first step of a commit, in the first commits at least; returns whether a copy is
            usable.
    """

    def __init__(self, parts: Parts, counts: memoryview, stepping: Callable[[], bool]) -> None:
        self._parts = parts
        self._counts = counts
        self._stepping = stepping
        self._commits = 0
        self._ran = self._exposed = self._closures = self._settled = False
        self.verify: Callable[[], None] | None = None
        """Function that waits for the results of a closure's collectives; None: no wait."""
        self._begun: dict[int, _Closure | list[int]] = {}  # by optimizer: its newest step with a closure
        self._live: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._plain: list[Any] = []
        self.ready = False
        """True if the present step can be undone."""
        self.busy = True
        """True if `forget` must be called at each commit."""
        self._handles: list[RemovableHandle] = []
        self.stand_last()
        self._runs = [module.register_forward_pre_hook(_calling(self._run, 0)) for module in parts.modules]

    def stand_last(self) -> None:
        """Put the hooks after those that count steps."""
        for handle in self._handles:
            handle.remove()
        hooks = [_calling(self._before, index) for index in range(len(self._parts.optimizers))]
        pairs = zip(self._parts.optimizers, hooks, strict=True)
        self._handles = [optimizer.register_step_pre_hook(hook) for optimizer, hook in pairs]

    def expose(self) -> None:
        """Have all replicated parts copied from the next step on.

        A trainer calls this if it knows that ranks communicate between two steps of one commit.
        """
        self._exposed = True

    def met(self) -> None:
        """Record that ranks may communicate now, as they do where a model runs. A trainer calls this."""
        self._ran = True

    def untouched(self, index: int) -> bool:
        """Return whether the optimizer, which is inside its step, has changed nothing yet."""
        known = self._begun.get(index)
        if isinstance(known, _Closure):
            return known.stands
        return known is not None and known == _versions(self._parts.optimizers[index])

    def forget(self) -> None:
        """Drop the copy, because the step is committed or another state was restored."""
        self.ready = False
        if not self._settled and (self._commits >= _COMMITS or self._exposed):
            self._settle()

    def end(self) -> None:
        """Remove all hooks and copies, because this state does not train any more.

        If it trains later all the same, it is TORN in the middle of a step.
        """
        for handle in (*self._runs, *self._handles):
            handle.remove()
        self._runs.clear()
        self._handles.clear()
        self._copies, self._live, self._plain = [], [], []
        self.ready = self.busy = False

    def apply(self) -> None:
        """Restore the replicated parts as they were before the first step."""
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
        if given is not None and self._counts[2 * index] - self._counts[2 * index + 1] <= 1:  # else a nested step
            kind: Any = type(optimizer)
            self._closures = True
            if isinstance(optimizer, torch.optim.LBFGS):
                self._exposed = True
            elif _calls_first(kind):
                self._begun[index] = closure = _Closure(given, optimizer, self.verify)
                wrapped = ((args[0], closure), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closure})
            else:
                self._begun[index] = _versions(optimizer)
        if not self._settled or self._exposed or self._ran:  # else the closure was all that the hook is needed for
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
        """Copy all replicated parts: tensors of modules and optimizers into reused memory, the rest to new objects."""
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
    """The closure of one step, for an optimizer that calls it before it changes anything."""

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
        """True if nothing has changed: the closure has not returned, and no other hook has changed the parameters."""
        return not self._returned and self._first._version == self._version


@cache
def _calls_first(kind: Any) -> bool:
    """Return whether the optimizer class has a `step` of torch's own."""
    return (kind.step.__module__ or "").startswith("torch.optim.")


def _calling(call: Callable[..., Any], index: int) -> Callable[..., Any]:
    """Return a plain function, so the object that carries it can be copied."""

    def hook(*args: Any) -> Any:
        return call(index, *args)

    return hook


def _versions(optimizer: torch.optim.Optimizer) -> list[int]:
    return [parameter._version for group in optimizer.param_groups for parameter in group["params"]]


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]


def _kept(values: dict[str, Any]) -> dict[str, Any]:
    """Copy the state of one parameter except its tensors, which `_save` copies. Lists of tensors (LBFGS) are copied."""
    return {k: v if isinstance(v, torch.Tensor) else copy.deepcopy(v) for k, v in values.items()}
