"""Statements of the script that change, read or seed an attribute, key or variable of a given name.

Rules:

1. An attribute counts if a method of its class reads it, other than to change it, to print it or to save it.
2. A number matters only where it is made from itself (`self.calls += 1`). A number that is set from another value
   follows that value.
"""

import ast
import inspect
import re
from collections import deque
from collections.abc import Iterable
from types import FunctionType
from typing import Final, TypeGuard

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.proof.names import (
    ScriptFunction,
    dotted,
    last_name,
    names_in,
    places_in,
    targets_of,
    walk_tree,
)
from taskd.adaptors.training.script.script_text import ScriptLine, function_of

OUTPUT: Final = re.compile("log|print|save|write|plot|report|display|draw|dump|summar|record|show")
"""Pattern in the name of a function that takes nothing into the training."""
_SHOWN: Final = frozenset({"__str__", "__repr__", "__format__", "state_dict", "load_state_dict", "__getstate__"})
_MIXES: Final = frozenset({"mul_", "add_", "sub_", "div_", "lerp_", "lerp", "addcmul_", "addcdiv_", "copysign_"})
_CONTAINERS: Final = (list, dict, set, deque)
_ADDS_IN_ORDER: Final = frozenset({"append", "appendleft", "extend", "insert"})
_ADDS: Final = _ADDS_IN_ORDER | {"add", "update", "setdefault"}
_SHAPE: Final = frozenset(
    {"shape", "size", "dim", "ndim", "device", "dtype", "numel", "new_zeros", "new_ones", "new_empty"}
)
_STEPS: Final = frozenset({"step", "epoch", "global_step", "current_epoch"})
_SEEDS: Final = frozenset({"manual_seed", "seed", "set_state", "setstate"})


class ClassText:
    """Methods that an object has from classes of the script, with their trees."""

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


def carried_at(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> str:
    """Return `file:line` of the first statement that makes an attribute, key or variable of this name from itself."""
    for _, file, tree in texts:
        for node in walk_tree(tree, inner=True):
            if isinstance(node, ast.AugAssign):
                carried = last_name(node.target) == name
            else:
                carried = _assigns(node, name) and _is_made_from(node, name)
            if carried:
                return f"{file}:{getattr(node, 'lineno', 0)}"
    return ""


def shuffled_at(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> str:
    """Return `file:line` where a list of this name is shuffled in place, in a function that does not reset it."""
    for _, file, tree in texts:
        nodes = list(walk_tree(tree, inner=True))
        if any(_makes_anew(node, name) for node in nodes):
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and _shuffles(node, name):
                return f"{file}:{node.lineno}"
    return ""


def _makes_anew(node: ast.AST, name: str) -> bool:
    """Return whether a statement gives a list an order that does not depend on its former one."""
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and last_name(node.target) == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("sort", "clear"):
        return last_name(node.func.value) == name
    return _assigns(node, name) and not _is_made_from(node, name)


def _asks_length_or_sorts(call: ast.Call) -> bool:
    return getattr(call.func, "id", "") in ("len", "sorted")


def _is_made_from(node: ast.Assign, name: str) -> bool:
    """Return whether a name is set from its own value. Its length does not count, nor a variable for an attribute."""
    value = node.value
    lengths = [one for one in ast.walk(value) if isinstance(one, ast.Call) and _asks_length_or_sorts(one)]
    apart = {id(inner) for one in lengths for inner in ast.walk(one)}
    targets = [target for target in targets_of(node) if last_name(target) == name]
    attribute = all(isinstance(target, ast.Attribute) for target in targets)
    return any(
        last_name(one) == name and isinstance(one.ctx, ast.Load) and not (attribute and isinstance(one, ast.Name))
        for one in places_in(value)
        if id(one) not in apart
    )


def _shuffles(call: ast.Call, name: str) -> bool:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return called == "shuffle" and any(last_name(one) == name for one in call.args)


def set_once(texts: Iterable[tuple[str, str, ast.AST]]) -> dict[str, str]:
    """Return values that are set only where they are missing, from a batch or loss: `file:line` by attribute or key."""
    found: dict[str, str] = {}
    for method, file, tree in texts:
        for asked in walk_tree(tree, inner=True):
            if not isinstance(asked, ast.If):
                continue
            for node in (inner for statement in (*asked.body, *asked.orelse) for inner in ast.walk(statement)):
                names = {last_name(target) for target in targets_of(node)} if isinstance(node, ast.Assign) else ()
                for name in names:
                    if _asks_for(asked.test, name) and _is_given(node, tree, is_method=bool(method)):
                        found.setdefault(name, f"{file}:{getattr(node, 'lineno', 0)}")
    return found


def _asks_for(test: ast.AST, name: str) -> bool:
    """Return whether a condition tests for this name: `is None`, `not`, `in`, `hasattr`."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            others = [node.left, *node.comparators]
            if any(last_name(one) == name for one in others) and any(_is_nothing(one) for one in others):
                return True
            if isinstance(node.ops[0], ast.In | ast.NotIn) and getattr(node.left, "value", None) == name:
                return True
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not) and last_name(node.operand) == name:
                return True
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hasattr" and _has_argument(node, name):
            return True
    return False


def _has_argument(call: ast.Call, name: str) -> bool:
    return any(getattr(one, "value", None) == name for one in call.args)


def _is_nothing(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_given(node: ast.AST, function: ast.AST, *, is_method: bool) -> bool:
    """Return whether an assignment uses a value of an argument, not only its shape."""
    arguments = getattr(function, "args", None)
    given = {one.arg for one in arguments.args[is_method:]} if isinstance(arguments, ast.arguments) else set()
    sets = [one for one in walk_tree(function) if isinstance(one, ast.Assign)]
    if not is_method:  # the training function has no arguments: its values come from the model and the loader
        loops = [one.target for one in walk_tree(function) if isinstance(one, ast.For)]
        made = [target for one in sets if isinstance(one.value, ast.Call) for target in targets_of(one)]
        given |= {name for one in (*loops, *made) for name in names_in(one)}
    while True:
        more = {
            target.id
            for one in sets
            if _uses_value(one.value, given)
            for target in targets_of(one)
            if isinstance(target, ast.Name)
        }
        if more <= given:
            break
        given |= more
    return isinstance(node, ast.Assign) and _uses_value(node.value, given)


def _uses_value(value: ast.AST, names: set[str]) -> bool:
    """Return whether an expression uses the value of one of these names, not its shape or length, or as an index."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, ast.Name) and one.id in names:
            return True
        if isinstance(one, ast.Subscript):
            left.append(one.value)
            continue
        shape = isinstance(one, ast.Attribute) and one.attr in _SHAPE
        length = isinstance(one, ast.Call) and getattr(one.func, "id", "") in ("len", "open")
        if not shape and not length:
            left.extend(ast.iter_child_nodes(one))
    return False


def mixed_at(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> str:
    """Return `file:line` where a function that names an attribute mixes tensors in place, or makes them from others."""
    for _, file, tree in texts:
        if not any(last_name(one) == name for one in places_in(tree)):
            continue
        for node in walk_tree(tree, inner=True):
            by_name = isinstance(node, ast.Attribute) and (node.attr in _MIXES or node.attr.startswith("_foreach_"))
            product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            if by_name or product or isinstance(node, ast.AugAssign):
                return f"{file}:{getattr(node, 'lineno', 0)}"
    return ""


def is_read(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Return whether any of these functions reads an attribute other than to change, print or save it."""
    for method, _, tree in texts:
        if method in _SHOWN or OUTPUT.search(method):
            continue
        own = {id(inner) for node in walk_tree(tree, inner=True) if _is_aside(node, name) for inner in ast.walk(node)}
        reads = (one for one in places_in(tree) if last_name(one) == name and isinstance(one.ctx, ast.Load))
        if any(id(one) not in own for one in reads):
            return True
    return False


def readers_of(name: str, methods: Iterable[tuple[str, str, ast.AST]]) -> set[str]:
    """Return the methods of a class that read an attribute, themselves or through another one of these."""
    known = list(methods)
    found = {method for method, file, tree in known if is_read(name, [(method, file, tree)])}
    while True:
        calls = {method for method, _, tree in known if method not in found and _uses(tree, found)}
        if not calls:
            return found
        found |= calls


def _uses(tree: ast.AST, methods: set[str]) -> bool:
    reads = (one for one in ast.walk(tree) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load))
    return any(one.attr in methods and isinstance(one.value, ast.Name) for one in reads)


def remembers(functions: Iterable[ScriptFunction]) -> bool:
    """Return whether a container grows and is read, other than to print or save it: in a new process it is empty."""
    known = list(functions)
    texts = [("", one.file, one.tree) for one in known if one.tree is not None]
    for one in known:
        for method in filter(None, map(_addition, walk_tree(one.tree, inner=True))):
            value = one.value(method.value)
            kept = bool(value) if isinstance(value, _CONTAINERS) else value is None and method.attr in _ADDS_IN_ORDER
            if kept and is_read(last_name(method.value), texts):
                return True
    return False


def is_seeded(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Return whether any of these functions itself sets the state of a generator of this name."""
    calls = (node for _, _, tree in texts for node in walk_tree(tree, inner=True) if isinstance(node, ast.Call))
    methods = (one.func for one in calls if isinstance(one.func, ast.Attribute))
    return any(one.attr in _SEEDS and last_name(one.value) == name for one in methods)


def first_line(tree: ast.AST, name: str) -> int:
    """Return the line where a function first names an attribute or variable; 0 if it does not."""
    return min((one.lineno for one in places_in(tree) if last_name(one) == name), default=0)


def follows_step(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Return whether a value of this name is also set from the state's step or epoch."""
    for _, _, tree in texts:
        for node in walk_tree(tree, inner=True):
            values = ast.walk(node.value) if _assigns(node, name) else ()
            if any(isinstance(one, ast.Attribute) and one.attr in _STEPS for one in values):
                return True
    return False


def _is_aside(node: ast.AST, name: str) -> bool:
    """Return whether a node changes the named value itself, shows it, or tests whether it is there."""
    if isinstance(node, ast.Compare):
        return any(map(_is_nothing, node.comparators)) and last_name(node.left) == name
    if isinstance(node, ast.AugAssign):
        return last_name(node.target) == name
    if _assigns(node, name):
        return True
    method = _addition(node)
    if method is not None and last_name(method.value) == name:
        return True
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called in ("format", "str", "repr") or bool(OUTPUT.search(called))
    return isinstance(node, ast.JoinedStr)


def _addition(node: ast.AST) -> ast.Attribute | None:
    """Return the method of a call that adds to a container, as `history.append(…)`; else None."""
    method = node.func if isinstance(node, ast.Call) else None
    return method if isinstance(method, ast.Attribute) and method.attr in _ADDS else None


def _assigns(node: ast.AST, name: str) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(last_name(one) == name for one in targets_of(node))


def only_sets_epochs(name: str, texts: Iterable[tuple[str, str, ast.AST]]) -> bool:
    """Return whether these functions change `name`, and use it for nothing but the epoch of samplers."""
    uses, allowed, is_set = set[int](), set[int](), False
    for node in (node for _, _, tree in texts for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and dotted(node.func).endswith("sampler.set_epoch"):
            given = [inner for argument in node.args for inner in ast.walk(argument)]
            is_set = is_set or any(last_name(inner) == name for inner in given)
            allowed.update(map(id, given))
        elif isinstance(node, ast.AugAssign | ast.Assign):
            targets = targets_of(node) if isinstance(node, ast.Assign) else [node.target]
            if any(last_name(target) == name for target in targets):
                allowed.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.Attribute | ast.Name) and last_name(node) == name:
            uses.add(id(node))
    return is_set and uses <= allowed
