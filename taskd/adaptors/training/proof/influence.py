"""Whether what the script changes comes back to the training, and where it is changed: read from the script's text.

Rules:

1. From what moves the training (a model's pass, a backward pass, an optimizer, a seed, the sampler's epoch, the end of
   a loop around these) it is gone backwards to the names that flow into it. What is not among them is output.
2. An attribute counts if a method of its class reads it, other than to change it, to print it or to save it.
3. A number matters only where it is made from itself (`self.calls += 1`): what is set from something else follows that.
4. What cannot be read matters to nobody.
"""

import ast
import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, TypeGuard

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.script.script_text import FUNCTIONS, ScriptLine, function_of

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
_OUTPUT: Final = re.compile("log|print|save|write|plot|report|display|draw|dump|summar|record|show")
_SHOWN: Final = frozenset({"__str__", "__repr__", "__format__", "state_dict", "load_state_dict", "__getstate__"})
_MIXES: Final = frozenset({"mul_", "add_", "sub_", "div_", "lerp_", "lerp", "addcmul_", "addcdiv_", "copysign_"})
_CONTAINERS: Final = (list, dict, set, deque)
_ADDS_IN_ORDER: Final = frozenset({"append", "appendleft", "extend", "insert"})
_ADDS: Final = _ADDS_IN_ORDER | {"add", "update", "setdefault"}
_STEPS: Final = frozenset({"step", "epoch", "global_step", "current_epoch"})
_SEEDS: Final = frozenset({"manual_seed", "seed", "set_state", "setstate"})
_DEEPEST: Final = 3


class ScriptFunction:
    """A function of the script: its tree, its file, and what its names stand for as far as that is known."""

    def __init__(self, code: CodeType, names: dict[str, Any]) -> None:
        self.file, self.names = code.co_filename, names
        self.tree = function_of(ScriptLine(code.co_filename, code.co_firstlineno, code.co_firstlineno))

    def value(self, node: ast.AST) -> Any:
        """What an expression of names and attributes stands for, without running a property; None if not known."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            found = None if owner is None else inspect.getattr_static(owner, node.attr, None)
            if isinstance(owner, torch.nn.Module) and found is None:
                found = vars(owner).get("_modules", {}).get(node.attr)
            return None if isinstance(found, property) else found
        return None


class Influence:
    """What flows into the training in these functions.

    Args:
        functions: of the script, that run between a commit and the next.
        held: ids of what the state has.
    """

    def __init__(self, functions: Iterable[ScriptFunction], held: frozenset[int]) -> None:
        self._functions = [one for one in functions if one.tree is not None]
        self._held = held
        self._moving: dict[int, bool] = {}
        self._read: set[int] = set()
        self.names: set[str] = set()
        for function in self._functions:
            self.names |= self._of(function)

    def reaches(self, path: str, methods: Iterable[str] = ()) -> bool:
        """Whether an object flows into the training: by its name, or through one of these methods of it."""
        dotted = plain_path(path)
        heads = {dotted[:at] for at, letter in enumerate(dotted) if letter == "."} - {"self"}
        calls = {f"{dotted}.{method}" for method in methods}
        return bool(self.names & (heads | calls | {dotted} - {"self"}))

    def takes(self, path: str) -> bool:
        """Whether the very attribute or variable at this path flows into the training."""
        return plain_path(path) in self.names

    # Inside.

    def _of(self, function: ScriptFunction) -> set[str]:
        assert function.tree is not None
        found: set[str] = set()
        aliases = self._aliases(function)
        for node in _walk(function.tree):
            if isinstance(node, ast.Call) and self._moves(node, function, _DEEPEST):
                found |= self._given(node, function)
            elif isinstance(node, ast.Assign | ast.AugAssign) and _sets_alias(node, aliases):
                found |= _names_in(node.value)
        if not found:
            return found
        while True:
            more = set(found)
            for node in _walk(function.tree):
                more |= self._flows(node, found, function)
            if more == found:
                return found
            found = more

    def _flows(self, node: ast.AST, found: set[str], function: ScriptFunction) -> set[str]:
        """The names that flow into those found at this statement."""
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and any(_meets(target, found) for target in targets):
                return _names_in(node.value)
        elif isinstance(node, ast.For):
            if _meets(node.target, found) or self._moves_within(node, function):
                return _names_in(node.iter)
        elif isinstance(node, ast.While | ast.If):
            decides = isinstance(node, ast.If) and (_leaves(node) or _sets(node, found))
            return _names_in(node.test) if decides or self._moves_within(node, function) else set()
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            return _names_in(node.context_expr) if _meets(node.optional_vars, found) else set()
        return set()

    def _moves_within(self, node: ast.AST, function: ScriptFunction) -> bool:
        return any(isinstance(one, ast.Call) and self._moves(one, function, _DEEPEST) for one in _walk(node))

    def _moves(self, call: ast.Call, function: ScriptFunction, deep: int) -> bool:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in _MOVE:
            return True
        if name in _LOOKS or _OUTPUT.search(name):
            return False
        called = function.value(call.func)
        owner = function.value(call.func.value) if isinstance(call.func, ast.Attribute) else called
        if isinstance(owner, _MOVERS) and not isinstance(owner, type):
            return id(owner) in self._held or not isinstance(owner, torch.nn.Module) or _has_parameters(owner)
        inner = getattr(called, "__func__", called)
        return isinstance(inner, FunctionType) and is_users(inner.__code__.co_filename) and self._is_moving(inner, deep)

    def _given(self, call: ast.Call, function: ScriptFunction) -> set[str]:
        """The names that a call takes into the training: of a function of the script those that it does take there."""
        called = function.value(call.func)
        inner = getattr(called, "__func__", called)
        if not isinstance(inner, FunctionType) or not is_users(inner.__code__.co_filename) or id(inner) in self._read:
            return _names_in(call)
        self._read.add(id(inner))
        names = self._of(ScriptFunction(inner.__code__, dict(inner.__globals__)))
        self._read.discard(id(inner))
        flow = {_root(name) for name in names}
        parameters = inner.__code__.co_varnames[inner is not called :]
        given = [one for parameter, one in zip(parameters, call.args, strict=False) if parameter in flow]
        given += [one.value for one in call.keywords if one.arg in flow or one.arg is None]
        return {name for one in given for name in _names_in(one)}

    def _is_moving(self, called: FunctionType, deep: int) -> bool:
        """Whether a function of the script moves the training itself."""
        known = self._moving.get(id(called))
        if known is None:
            self._moving[id(called)] = False
            tree = ScriptFunction(called.__code__, dict(called.__globals__))
            calls = [one for one in _walk(tree.tree) if isinstance(one, ast.Call)] if tree.tree is not None else []
            known = self._moving[id(called)] = bool(deep) and any(self._moves(one, tree, deep - 1) for one in calls)
        return known

    def _aliases(self, function: ScriptFunction) -> set[str]:
        """Names of the groups of an optimizer in a loop over them, and of what the state has itself."""
        assert function.tree is not None
        found = {name for name, value in function.names.items() if id(value) in self._held}
        for node in _walk(function.tree):
            if isinstance(node, ast.For) and "param_groups" in ast.dump(node.iter):
                found |= _names_in(node.target)
        return found


class ClassText:
    """The methods of the script's classes that an object has, with their trees."""

    def __init__(self, kind: type) -> None:
        self.methods: list[tuple[str, str, ast.AST]] = []
        for one in kind.__mro__:
            for name, found in vars(one).items():
                inner = getattr(found, "__func__", getattr(found, "fget", found))
                method = inspect.unwrap(inner) if isinstance(inner, FunctionType) else inner
                if isinstance(method, FunctionType) and is_users(method.__code__.co_filename):
                    code = method.__code__
                    tree = function_of(ScriptLine(code.co_filename, code.co_firstlineno, code.co_firstlineno))
                    if tree is not None:
                        self.methods.append((name, code.co_filename, tree))


def plain_path(path: str) -> str:
    """A path as a script writes it, without the items of containers."""
    return re.sub(r"\[[^]]*\]", "", path)


def carried_at(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> str:
    """`file:line` of the first statement that makes an attribute, key or variable of this name from itself."""
    for _, file, tree in texts:
        for node in _walk(tree, inner=True):
            if isinstance(node, ast.AugAssign):
                carried = _last(node.target) == name
            else:
                values = _places(node.value) if _assigns(node, name) else []
                carried = any(_last(one) == name and isinstance(one.ctx, ast.Load) for one in values)
            if carried:
                return f"{file}:{getattr(node, 'lineno', 0)}"
    return ""


def mixed_at(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> str:
    """`file:line` where a function that names an attribute mixes tensors in place, or makes them from others."""
    for _, file, tree in texts:
        if not any(_last(one) == name for one in _places(tree)):
            continue
        for node in _walk(tree, inner=True):
            by_name = isinstance(node, ast.Attribute) and (node.attr in _MIXES or node.attr.startswith("_foreach_"))
            product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            if by_name or product or isinstance(node, ast.AugAssign):
                return f"{file}:{getattr(node, 'lineno', 0)}"
    return ""


def is_read(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Whether any of these functions reads an attribute other than to change, print or save it."""
    for method, _, tree in texts:
        if method in _SHOWN or _OUTPUT.search(method):
            continue
        own = {id(inner) for node in _walk(tree, inner=True) if _is_aside(node, name) for inner in ast.walk(node)}
        reads = (one for one in _places(tree) if _last(one) == name and isinstance(one.ctx, ast.Load))
        if any(id(one) not in own for one in reads):
            return True
    return False


def remembers(functions: Iterable[ScriptFunction]) -> bool:
    """Whether a container grows and is read, other than to print or save it: in a new process it is empty."""
    known = list(functions)
    texts = [("", one.file, one.tree) for one in known if one.tree is not None]
    for one in known:
        for method in filter(None, map(_addition, _walk(one.tree, inner=True))):
            value = one.value(method.value)
            kept = bool(value) if isinstance(value, _CONTAINERS) else value is None and method.attr in _ADDS_IN_ORDER
            if kept and is_read(_last(method.value), texts):
                return True
    return False


def is_seeded(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Whether any of these functions puts a generator of this name somewhere itself."""
    calls = (node for _, _, tree in texts for node in _walk(tree, inner=True) if isinstance(node, ast.Call))
    methods = (one.func for one in calls if isinstance(one.func, ast.Attribute))
    return any(one.attr in _SEEDS and _last(one.value) == name for one in methods)


def first_line(tree: ast.AST, name: str) -> int:
    """Where a function first names an attribute or variable; 0 if it does not."""
    return min((one.lineno for one in _places(tree) if _last(one) == name), default=0)


def follows_step(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Whether something of this name is also set from the state's step or epoch."""
    for _, _, tree in texts:
        for node in _walk(tree, inner=True):
            values = ast.walk(node.value) if _assigns(node, name) else ()
            if any(isinstance(one, ast.Attribute) and one.attr in _STEPS for one in values):
                return True
    return False


def _is_aside(node: ast.AST, name: str) -> bool:
    """A statement that changes the thing itself, or shows it."""
    if isinstance(node, ast.AugAssign):
        return _last(node.target) == name
    if _assigns(node, name):
        return True
    method = _addition(node)
    if method is not None and _last(method.value) == name:
        return True
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called in ("format", "str", "repr") or bool(_OUTPUT.search(called))
    return isinstance(node, ast.JoinedStr)


def _addition(node: ast.AST) -> ast.Attribute | None:
    """Return the method of a call that adds to a container, as `history.append(…)`; else None."""
    method = node.func if isinstance(node, ast.Call) else None
    return method if isinstance(method, ast.Attribute) and method.attr in _ADDS else None


def _assigns(node: ast.AST, name: str) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(_last(one) == name for one in _targets(node))


def _walk(tree: ast.AST | None, *, inner: bool = False) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions that it defines unless `inner`."""
    left = [tree] if tree is not None else []
    while left:
        node = left.pop()
        yield node
        children = ast.iter_child_nodes(node)
        left.extend(child for child in children if inner or not isinstance(child, (*FUNCTIONS, ast.ClassDef)))


def _names_in(node: ast.AST) -> set[str]:
    """Dotted names in an expression: `progress.noise` of `progress.noise()`, and `self.step`."""
    found: set[str] = set()
    left: list[ast.AST] = [node]
    while left:
        one = left.pop()
        dotted = _dotted(one)
        if dotted:
            found.add(dotted)
        else:
            left.extend(ast.iter_child_nodes(one))
    return found


def _meets(target: ast.AST, found: set[str]) -> bool:
    """Whether what is set here, or something of it, is among these names."""
    names = _names_in(target)
    return any(one == name or one.startswith(f"{name}.") for one in found for name in names)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _places(tree: ast.AST) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript | ast.Name)]


def _last(node: ast.AST) -> str:
    """The attribute, constant key or variable that a place ends with."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return str(node.slice.value) if isinstance(node.slice, ast.Constant) else _last(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def _targets(node: ast.Assign) -> list[ast.AST]:
    found: list[ast.AST] = []
    for target in node.targets:
        found.extend(target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    return found


def _leaves(node: ast.If) -> bool:
    return any(isinstance(one, ast.Break | ast.Continue | ast.Return | ast.Raise) for one in _walk(node))


def _sets(node: ast.If, found: set[str]) -> bool:
    assigned = [one for one in _walk(node) if isinstance(one, ast.Assign | ast.AugAssign)]
    return any(
        _meets(target, found)
        for one in assigned
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
    )


def _sets_alias(node: ast.Assign | ast.AugAssign, aliases: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(
        isinstance(target, ast.Attribute | ast.Subscript) and any(_root(name) in aliases for name in _names_in(target))
        for target in targets
    )


def _root(name: str) -> str:
    return name.partition(".")[0]


def _has_parameters(module: Any) -> bool:
    return next(iter(torch.nn.Module.parameters(module)), None) is not None
