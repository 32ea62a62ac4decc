"""Calls of the script: the result of each, and whether it moves the training.

Rules:

1. Calls of the state, and calls that make iterators, are known. A function of the script is read. A call of a library
   is judged by its name and its arguments (`meanings`).
2. A number that is computed from the state's step is a function of it. No other result made from the step comes again.
"""

import ast
from typing import Final

import torch

from taskd.adaptors.training.proof.flow.iterating import Iterating
from taskd.adaptors.training.proof.flow.meanings import draws, function_moves, has_parameters, is_clock, method_moves
from taskd.adaptors.training.proof.flow.scope import MUTATING, changes_itself, inside, member
from taskd.adaptors.training.proof.flow.values import (
    AT_EPOCH,
    MISSING,
    PLAIN,
    VARYING,
    Elements,
    Root,
    Taint,
    TaintKind,
    Value,
    combine,
)

_EMPTY_FAILS: Final = frozenset({"max", "min", "mean", "fmean", "median", "stack", "cat", "concat", "vstack", "hstack"})
"""Functions that raise an error for an empty list. numpy's `mean` does not, and is recognized by its module."""
_SHOWING: Final = frozenset({"tqdm", "track"})
"""Functions that show the progress of a loop, and give the items that they iterate over."""
_COPYING: Final = frozenset({"deepcopy", "copy"})
"""Functions that return a copy of their argument."""
_RECKONING: Final = frozenset(
    {
        *("int", "float", "bool", "min", "max", "divmod", "abs", "round", "pow", "len"),
        *("floor", "ceil", "cos", "sin", "sqrt", "exp", "log"),
    }
)
"""Functions that compute from the state's step another number that is a function of it."""
_MAKING: Final = frozenset(
    {
        *("default_rng", "RandomState", "Random", "SeedSequence", "PCG64", "manual_seed"),
        *("tensor", "as_tensor", "from_numpy", "array", "asarray", "arange", "full", "stack", "cat", "concatenate"),
        *("to", "long", "float", "view", "reshape", "flatten", "unsqueeze", "squeeze", "clone", "contiguous"),
    }
)
"""Generators with a seed, and functions that make tensors of numbers: made of the step, they are a function of it."""


class Calls(Iterating):
    """Reader of calls."""

    def call(self, node: ast.Call) -> Value:
        """Return the value of a call."""
        func = node.func
        if isinstance(func, ast.Attribute):
            owner, name = self.read(func.value), func.attr
            called = MISSING if owner.obj is self.state else member(owner.obj, name)
            said = func.value.attr if isinstance(func.value, ast.Attribute) else getattr(func.value, "id", "")
        else:
            owner, name, said = self.read(func), getattr(func, "id", ""), ""
            called = owner.obj
        arguments = [self.read(one) for one in node.args]
        words = {one.arg or "**": self.read(one.value) for one in node.keywords}
        if self.is_commit(owner, name, called, said):
            self._commit(node)
            return PLAIN
        if isinstance(func, ast.Attribute) and owner.obj is self.state:
            return self._of_state_call(node, name, [*arguments, *words.values()])
        known = self.iterating(called)
        if known is not None:
            return known(self, node, arguments, words)
        code = self.code_of(called)
        if code is not None:
            return self.own_call(code, arguments, words)
        return self._library_call(node, owner, (name, said), arguments, [*words.values()])

    # The state.

    def _commit(self, node: ast.AST) -> None:
        self.effect(node)
        for frame in self.frames:
            self.cross(frame)

    def _of_state_call(self, node: ast.Call, name: str, given: list[Value]) -> Value:
        if name == "epochs":
            return Value(root=Root.EPOCH, shape=Elements(element=AT_EPOCH, epochs=True))
        if name in self.parts:
            return self._forward(node, self.of_object(self.parts[name]), given)
        return PLAIN

    # Libraries.

    def _library_call(
        self, node: ast.Call, owner: Value, names: tuple[str, str], arguments: list[Value], words: list[Value]
    ) -> Value:
        name, said = names
        given = [*arguments, *words]
        is_method = isinstance(node.func, ast.Attribute)
        if not is_method and has_parameters(owner.obj):
            return self._forward(node, owner, given)
        if is_method and isinstance(member(owner.obj, name), torch.nn.Module):
            return self._forward(node, self.of_object(member(owner.obj, name)), given)
        whole = combine([owner, *given])
        if (is_method and method_moves(name, owner, said, self.part_ids)) or function_moves(name, owner.obj, given):
            self.effect(node, whole.taints)
            self._sets_epoch(node, name)
        if is_method and isinstance(node.func.value, ast.Name) and self._changes(node.func.value.id, name):  # type: ignore[attr-defined]
            self.bind(node.func.value, combine([whole, VARYING]))  # type: ignore[attr-defined]
        self._fails_if_empty(node, name, owner, arguments)
        return self._result(name, whole, owner, arguments)

    def _result(self, name: str, whole: Value, owner: Value, arguments: list[Value]) -> Value:
        if is_clock(name):
            return Value(whole.taints, whole.pending, Root.CLOCK)
        of_step = whole.root in (Root.STEP, Root.EPOCH)
        if draws(name):
            return whole if of_step and owner.root is whole.root else combine([whole, VARYING])
        if name == "len" and arguments and arguments[0].zero is not None:
            return whole._replace(zero=arguments[0].zero)
        first = arguments[0].shape if arguments else None
        if first is not None and first.loader:
            return Value(shape=first._replace(each=first.each and name in _SHOWING))
        if owner.shape is not None and owner.shape.loader and not arguments:
            return Value(shape=owner.shape)
        if of_step and name not in _RECKONING and name not in _MAKING:
            return whole._replace(root=Root.VARIES, part=owner.part)
        part = owner.part or (name in _COPYING and bool(arguments) and arguments[0].part)
        return whole if part == whole.part else whole._replace(part=part)

    def _changes(self, owner: str, method: str) -> bool:
        env = self.frame.env
        if env is None or owner not in env.names or owner not in self.frame.assigned:
            return False
        return method in MUTATING or changes_itself(method)

    def _forward(self, node: ast.Call, model: Value, given: list[Value]) -> Value:
        whole = combine(given)
        if self.frame.graded and has_parameters(model.obj):
            self.effect(node, whole.taints)
        return Value(whole.taints, whole.pending, Root.VARIES)

    def _sets_epoch(self, node: ast.Call, name: str) -> None:
        """Find a sampler's epoch that is counted where it is set: a new process begins the count anew, others go on."""
        if name != "set_epoch" or not node.args or not isinstance(node.args[0], ast.Attribute | ast.Name):
            return
        epoch = node.args[0]
        frame = self.frame
        if isinstance(epoch, ast.Name) and epoch.id not in frame.outside | frame.around:
            return
        if isinstance(epoch, ast.Attribute):
            holder = self.read(epoch.value).obj
            if holder is self.state or id(holder) in self.part_ids:
                return
        text = ast.unparse(epoch)
        if any(isinstance(one, ast.AugAssign) and ast.unparse(one.target) == text for one in inside(frame.node)):
            owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            kind = TaintKind.EPOCHS if owner.endswith("sampler") else TaintKind.CALLS
            self.find(Taint(kind, text, frame.place(node)), node)

    def _fails_if_empty(self, node: ast.Call, name: str, owner: Value, arguments: list[Value]) -> None:
        if name not in _EMPTY_FAILS or len(arguments) != 1 or arguments[0].zero is None:
            return
        if getattr(owner.obj, "__name__", "") != "numpy":
            self.divide(node.args[0], node, arguments[0])
