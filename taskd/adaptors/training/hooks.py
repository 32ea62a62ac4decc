"""Hooks that count the steps of a training state's optimizers and detect the passes of its modules.

The hooks are plain functions or functions of the C core, so `copy.deepcopy` can still copy a model that carries them.

The code after a forward pass is not a torch hook. Any hook sends a module through a slower path of `__call__`, at 10 us
a pass. The code is put where `Module.compile` stores the compiled call of one module. Copying and pickling leave that
attribute out.

If several states share a module, the one that trains watches it. When its training function is entered, the hooks of
the other states are removed. The optimizers of finished trainings can then be freed.

`torch.compile` compiles none of this, because it would break the graph, which `fullgraph` forbids. Hooks for a module
inside a compiled module are put around the compiled one too.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from taskd.adaptors.groups.instances import imported, instances
from taskd.adaptors.training.parts.modes import Evaluations, Mode
from taskd.adaptors.training.parts.parts import Parts
from taskd.runtime.worker.pulse import Hook, Pulse

_watching: "WeakKeyDictionary[torch.nn.Module, list[ref[StepHooks]]]" = WeakKeyDictionary()
"""The `StepHooks` that have hooks on a module, in the order in which they were put."""


class StepHooks:
    """Counter of each optimizer's steps, begun and done, since the last commit.

    Args:
        parts: parts of the state; their optimizers and modules are watched.
        counts: two numbers per optimizer, in turn: its steps begun and done.
        before_forward: called with the module before each forward pass; it returns whether to call it again.
        after_forward: called after each forward pass that trains.

    Attributes:
        evaluations: functions to call around evaluations of the modules.

    """

    def __init__(
        self,
        parts: Parts,
        counts: memoryview,
        before_forward: Callable[[torch.nn.Module], bool],
        after_forward: Callable[[], None],
    ) -> None:
        self.withdrawn: Callable[[], None] = lambda: None
        """Callback for the moment when another state has taken over a module."""
        self.counts = counts
        self._parts = parts
        self.evaluations = Evaluations()
        self._modes = [Mode(module, self.evaluations) for module in parts.modules]
        self._handles: list[RemovableHandle | AfterPass] = []
        self._after_forward = after_forward
        self._before_forward = before_forward
        self._before: list[RemovableHandle] = []
        self._hooked: WeakSet[torch.nn.Module] = WeakSet()
        for module in parts.modules:
            _watching.setdefault(module, []).append(ref(self))
        self.use(None)

    def use(self, pulse: Pulse | None, *, records: bool = True) -> None:
        """Count in C from now on, or in Python if `pulse` is None.

        `records`: whether forward passes that train record the position in C too.
        """
        if pulse is not None:
            self._put(pulse.optimizers, pulse.after_forward if records else None, pulse)
            return
        in_python = [_counting(self.counts, index) for index in range(len(self._parts.optimizers))]
        self._put(in_python, self._after_forward, None)

    def take_over(self) -> None:
        """Become the only watcher of the state's modules, because the state trains from now on."""
        found = {id(one): one for module in self._parts.modules for known in _watching[module] if (one := known())}
        if found.keys() <= {id(self)}:
            return  # putting the hooks takes milliseconds, since it searches for compiled modules
        for one in reversed(found.values()):  # the hooks that were put last are the outermost
            one._remove()
            if one is not self:
                one._end()
        for module in self._parts.modules:
            _watching[module] = [ref(self)]
        self.use(None)

    @property
    def torn(self) -> bool:
        """True if an optimizer is inside its step or has stepped more than once."""
        begun, done = self.counts[::2], self.counts[1::2]
        return any(a != b or b > 1 for a, b in zip(begun, done, strict=True))

    @property
    def inside(self) -> bool:
        """True if an optimizer is inside its step."""
        return any(begun != done for begun, done in zip(self.counts[::2], self.counts[1::2], strict=True))

    @property
    def stepped(self) -> list[bool]:
        """One flag per optimizer: true if it has stepped."""
        return [count > 0 for count in self.counts[1::2]]

    def untouched(self, index_untouched: Callable[[int], bool]) -> bool:
        """Return whether no optimizer has changed anything since the commit.

        That holds if none has completed a step, and `index_untouched` is true for each that is inside its step.
        """
        begun, done = self.counts[::2], self.counts[1::2]
        return not any(done) and all(not count or index_untouched(index) for index, count in enumerate(begun))

    def withdraw(self) -> None:
        """Remove a begun step from the counts, because it is rejected before it has changed anything."""
        for index in range(0, len(self.counts), 2):
            self.counts[index] = self.counts[index + 1]

    def train_on(self) -> None:
        """Leave an evaluation that was interrupted."""
        for mode in self._modes:
            mode.put_back()

    def _end(self) -> None:
        for handle in self._before:
            handle.remove()
        self._before.clear()
        self._hooked.clear()
        self.withdrawn()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _put(self, optimizers: list[tuple[Hook, Hook]], record: Hook | None, pulse: Pulse | None) -> None:
        self._remove()
        for module, mode in zip(self._parts.modules, self._modes, strict=True):
            after = _after_pass(module, mode, record)
            if pulse is not None:
                grad_enabled, records = torch.is_grad_enabled, record is not None
                after = pulse.after_pass(module, mode.trains_on, grad_enabled, after, records=records)
            for outer in (module, *_compiled_around(module)):
                self._handles.append(AfterPass(outer, after))
                if outer not in self._hooked:
                    self._hooked.add(outer)
                    self._before.append(_hook_before(outer, module, self._before_forward))
        for optimizer, (before, after) in zip(self._parts.optimizers, optimizers, strict=True):
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))


def _counting(counts: memoryview, index: int) -> tuple[Hook, Hook]:
    def before(*_: Any) -> None:
        counts[2 * index] += 1

    def after(*_: Any) -> None:
        counts[2 * index + 1] += 1

    return before, after


def _after_pass(module: torch.nn.Module, mode: Mode, record: Hook | None) -> Hook:
    """Return the function to call after each pass of a module. After a training pass it records the rank's position."""

    def after() -> None:
        if is_compiling():
            return
        if module.training and torch.is_grad_enabled():
            if not mode.trains_on[0]:
                mode.trains()
            if record is not None:
                record()
        else:
            mode.evaluates()

    return after


class AfterPass:
    """Wrapper of a module's call: calls `after` when a pass has returned, until it is removed. It costs 1 us a pass."""

    def __init__(self, outer: torch.nn.Module, after: Hook) -> None:
        self._module = outer
        self._former = former = outer._compiled_call_impl
        inner: Callable[..., Any] = outer._call_impl if former is None else former

        def call(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            if not is_dynamo_compiling():  # a constant for the compiler, which then compiles nothing of the branch
                after()
            return result

        self._call = call
        vars(outer)["_compiled_call_impl"] = call

    def remove(self) -> None:
        """Restore the module's former call, unless `Module.compile` was called since."""
        if vars(self._module).get("_compiled_call_impl") is self._call:
            vars(self._module)["_compiled_call_impl"] = self._former


def _hook_before(
    outer: torch.nn.Module, module: torch.nn.Module, call: Callable[[torch.nn.Module], bool]
) -> RemovableHandle:
    def before(*_: Any) -> None:
        if not is_compiling() and not call(module):
            handle.remove()

    handle = outer.register_forward_pre_hook(before)
    return handle


def _compiled_around(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules made by `torch.compile` that contain this module."""
    kind = imported("torch._dynamo.eval_frame", "OptimizedModule")
    found = instances(kind) if kind is not None else []
    return [outer for outer in found if outer is not module and any(inner is module for inner in outer.modules())]
