"""The hooks by which a training state sees its optimizers step and its modules run, and what they have counted.

They are plain functions, or functions of the core: a model that carries them can still be copied with `copy.deepcopy`.

What runs after a forward pass is no hook of torch's: a module that has any goes another way through `__call__`, at 10
us a pass. It stands where `Module.compile` puts the compiled call of one module, which copying and pickling leave out.

Of states that have a module in common the one that trains watches it: as its training function is entered the hooks of
the others are taken off, so that the optimizers of trainings that are over can go.

None of this is a part of what `torch.compile` compiles: there it would break the graph, which `fullgraph` forbids. What
runs around a module that lies in a compiled one stands around that.
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
"""Those that have hooks on a module, in their order."""


class StepHooks:
    """Counts, for each optimizer, the steps begun and done since the last commit.

    Args:
        parts: whose optimizers and modules are watched.
        counts: two numbers of each optimizer, begun and done, in turn.
        before_forward: called with the module before each forward pass; what it returns tells whether to call it again.
        after_forward: called after each forward pass that trains.

    Attributes:
        evaluations: what to call around evaluations of the modules.

    """

    def __init__(
        self,
        parts: Parts,
        counts: memoryview,
        before_forward: Callable[[torch.nn.Module], bool],
        after_forward: Callable[[], None],
    ) -> None:
        self.withdrawn: Callable[[], None] = lambda: None
        """Called when another state has taken a module over."""
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
        """From now on count in C, and record if the forward passes are to; or without a pulse in Python."""
        if pulse is not None:
            self._put(pulse.optimizers, pulse.after_forward if records else None, pulse)
            return
        in_python = [_counting(self.counts, index) for index in range(len(self._parts.optimizers))]
        self._put(in_python, self._after_forward, None)

    def take_over(self) -> None:
        """The state trains from now on: no other one watches its modules."""
        found = {id(one): one for module in self._parts.modules for known in _watching[module] if (one := known())}
        if found.keys() <= {id(self)}:
            return  # to put hooks takes milliseconds: compiled modules are looked for
        for one in reversed(found.values()):  # what was put last is around all others
            one._remove()
            if one is not self:
                one._end()
        for module in self._parts.modules:
            _watching[module] = [ref(self)]
        self.use(None)

    @property
    def torn(self) -> bool:
        """Whether an optimizer is inside its step, or has stepped more than once."""
        begun, done = self.counts[::2], self.counts[1::2]
        return any(a != b or b > 1 for a, b in zip(begun, done, strict=True))

    @property
    def inside(self) -> bool:
        """Whether an optimizer is inside its step."""
        return any(begun != done for begun, done in zip(self.counts[::2], self.counts[1::2], strict=True))

    @property
    def stepped(self) -> list[bool]:
        """Whether each optimizer has stepped."""
        return [count > 0 for count in self.counts[1::2]]

    def untouched(self, index_untouched: Callable[[int], bool]) -> bool:
        """Whether no optimizer has changed anything: none has stepped, and for each that is inside its step ask."""
        begun, done = self.counts[::2], self.counts[1::2]
        return not any(done) and all(not count or index_untouched(index) for index, count in enumerate(begun))

    def withdraw(self) -> None:
        """A step that was begun is refused before it has changed anything."""
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
    """What is done after each pass of a module; after one that trains it is recorded where the rank stands."""

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
    """Calls `after` whenever a pass of a module has returned, until removed. It costs a pass a microsecond."""

    def __init__(self, outer: torch.nn.Module, after: Hook) -> None:
        self._module = outer
        self._former = former = outer._compiled_call_impl
        inner: Callable[..., Any] = outer._call_impl if former is None else former

        def call(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            if not is_dynamo_compiling():  # the compiler sees a constant, and compiles nothing of what follows
                after()
            return result

        self._call = call
        vars(outer)["_compiled_call_impl"] = call

    def remove(self) -> None:
        """Put things back, unless `Module.compile` was called since."""
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
    """What `torch.compile` has made of modules that this is, or is a part of."""
    kind = imported("torch._dynamo.eval_frame", "OptimizedModule")
    found = instances(kind) if kind is not None else []
    return [outer for outer in found if outer is not module and any(inner is module for inner in outer.modules())]
