"""Influence on the training of values that the script changes: read from the script's text.

Rules:

1. The reading begins at code that moves the training (a model's pass, a backward pass, an optimizer, a seed, the
   sampler's epoch, the end of a loop around these). It goes backwards to the names that flow into that code. All other
   names are output.
2. A function of the script that moves the training is read too. In a method, `self.x` is the caller's `loop.x`.
3. Code that cannot be read has no influence.
"""

import ast
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd.adaptors.training.proof.names import CalledFunction, ScriptFunction, meets, names_in, plain_path, walk_tree
from taskd.adaptors.training.proof.texts import OUTPUT

_MOVE: Final = frozenset(
    {"backward", "set_epoch", "manual_seed", "manual_seed_all", "seed", "clip_grad_norm_", "clip_grad_value_"}
)
_MOVERS: Final = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
_LOOKS: Final = frozenset(
    {
        "eval",
        "train",
        "state_dict",
        "parameters",
        "named_parameters",
        "zero_grad",
        "modules",
        "named_modules",
        "buffers",
    }
)
"""Methods of a model or optimizer that take nothing into the training."""
_DEEPEST: Final = 3


class Influence:
    """Names that flow into the training in these functions.

    Args:
        functions: functions of the script that run between a commit and the next.
        held: ids of the objects that the state has.
    """

    def __init__(self, functions: Iterable[ScriptFunction], held: frozenset[int]) -> None:
        self._functions = [one for one in functions if one.tree is not None]
        self._held = held
        self._moving: dict[tuple[int, int], bool] = {}
        self._read: set[int] = set()
        self.names: set[str] = set()
        for function in self._functions:
            self.names |= self._of(function)

    def reaches(self, path: str, methods: Iterable[str] = ()) -> bool:
        """Return whether an object flows into the training: by its name, or through one of these methods of it."""
        plain = plain_path(path)
        heads = {plain[:at] for at, letter in enumerate(plain) if letter == "."} - {"self"}
        calls = {f"{plain}.{method}" for method in methods}
        return bool(self.names & (heads | calls | {plain} - {"self"}))

    def takes(self, path: str) -> bool:
        """Return whether the attribute or variable at this exact path flows into the training."""
        return plain_path(path) in self.names

    # Inside.

    def _of(self, function: ScriptFunction) -> set[str]:
        assert function.tree is not None
        found: set[str] = set()
        aliases = self._aliases(function)
        for node in walk_tree(function.tree):
            if isinstance(node, ast.Call) and self._moves(node, function, _DEEPEST):
                found |= self._given(node, function)
            elif isinstance(node, ast.Assign | ast.AugAssign) and _sets_alias(node, aliases):
                found |= names_in(node.value)
        if not found:
            return found
        while True:
            more = set(found)
            for node in walk_tree(function.tree):
                more |= self._flows(node, found, function)
            if more == found:
                return found
            found = more

    def _flows(self, node: ast.AST, found: set[str], function: ScriptFunction) -> set[str]:
        """Return the names that flow into those found, at this statement."""
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and any(meets(target, found) for target in targets):
                return names_in(node.value)
        elif isinstance(node, ast.For):
            if meets(node.target, found) or self._moves_within(node, function):
                return names_in(node.iter)
        elif isinstance(node, ast.While | ast.If):
            decides = isinstance(node, ast.If) and (_leaves(node) or _sets(node, found))
            return names_in(node.test) if decides or self._moves_within(node, function) else set()
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            return names_in(node.context_expr) if meets(node.optional_vars, found) else set()
        return set()

    def _moves_within(self, node: ast.AST, function: ScriptFunction) -> bool:
        return any(isinstance(one, ast.Call) and self._moves(one, function, _DEEPEST) for one in walk_tree(node))

    def _moves(self, call: ast.Call, function: ScriptFunction, deep: int) -> bool:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in _MOVE:
            return True
        if name in _LOOKS or OUTPUT.search(name):
            return False
        owner = function.value(call.func.value if isinstance(call.func, ast.Attribute) else call.func)
        if isinstance(owner, _MOVERS) and not isinstance(owner, type):
            return id(owner) in self._held or not isinstance(owner, torch.nn.Module) or _has_parameters(owner)
        called = function.called(call)
        return called is not None and self._is_moving(called, deep)

    def _given(self, call: ast.Call, function: ScriptFunction) -> set[str]:
        """Return the names that a call takes into the training; of a script's function only those it uses so."""
        called = function.called(call)
        if called is None or id(called.function) in self._read:
            return names_in(call)
        self._read.add(id(called.function))
        names = self._of(called.text())
        self._read.discard(id(called.function))
        if not names:
            return names_in(call)
        flow = {_root(name) for name in names}
        given = [one for name, one in zip(called.parameters, call.args, strict=False) if name in flow]
        given += [one.value for one in call.keywords if one.arg in flow or one.arg is None]
        own, local = called.own_name, set(called.function.__code__.co_varnames)
        found = {name for one in given for name in names_in(one)}
        if own and called.owner_name:
            found |= {called.owner_name + name.removeprefix(own) for name in names if _root(name) == own}
        return found | {name for name in names if _root(name) not in local}

    def _is_moving(self, called: CalledFunction, deep: int) -> bool:
        """Return whether a function of the script moves the training itself."""
        key = id(called.function), id(called.owner)
        known = self._moving.get(key)
        if known is None:
            self._moving[key] = False
            text = called.text()
            known = self._moving[key] = bool(deep) and text.tree is not None and self._moves_itself(text, deep)
        return known

    def _moves_itself(self, text: ScriptFunction, deep: int) -> bool:
        aliases = self._aliases(text)
        return any(
            _sets_alias(node, aliases)
            if isinstance(node, ast.Assign | ast.AugAssign)
            else self._moves(node, text, deep - 1)
            for node in walk_tree(text.tree)
            if isinstance(node, ast.Call | ast.Assign | ast.AugAssign)
        )

    def _aliases(self, function: ScriptFunction) -> set[str]:
        """Return the names of an optimizer's groups in a loop over them, and of objects that the state has."""
        assert function.tree is not None
        found = {name for name, value in function.names.items() if id(value) in self._held}
        for node in walk_tree(function.tree):
            if isinstance(node, ast.For) and "param_groups" in ast.dump(node.iter):
                found |= names_in(node.target)
        return found


def _leaves(node: ast.If) -> bool:
    return any(isinstance(one, ast.Break | ast.Continue | ast.Return | ast.Raise) for one in walk_tree(node))


def _sets(node: ast.If, found: set[str]) -> bool:
    assigned = [one for one in walk_tree(node) if isinstance(one, ast.Assign | ast.AugAssign)]
    return any(
        meets(target, found)
        for one in assigned
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
    )


def _sets_alias(node: ast.Assign | ast.AugAssign, aliases: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets):
        return not (isinstance(node.value, ast.Constant) and node.value.value is None)
    return any(
        isinstance(target, ast.Attribute | ast.Subscript) and any(_root(name) in aliases for name in names_in(target))
        for target in targets
    )


def _root(name: str) -> str:
    return name.partition(".")[0]


def _has_parameters(module: Any) -> bool:
    return next(iter(torch.nn.Module.parameters(module)), None) is not None
