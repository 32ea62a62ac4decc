"""Functions of the script as text: the values of their names, and the names in their trees."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.script.script_text import FUNCTIONS, ScriptLine, function_of


class ScriptFunction:
    """Function of the script: its tree, its file, and the values of its names as far as they are known."""

    def __init__(self, code: CodeType, names: dict[str, Any]) -> None:
        self.file, self.names = code.co_filename, names
        self.tree = function_of(ScriptLine(code.co_filename, code.co_firstlineno, code.co_firstlineno))

    def value(self, node: ast.AST) -> Any:
        """Return the value of an expression of names and attributes, without running a property; None if unknown."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            found = None if owner is None else inspect.getattr_static(owner, node.attr, None)
            if isinstance(owner, torch.nn.Module) and found is None:
                found = vars(owner).get("_modules", {}).get(node.attr)
            return None if isinstance(found, property) else found
        return None

    def called(self, call: ast.Call) -> "CalledFunction | None":
        """Return the function of the script that is called here; None if it is none, or if it is unknown."""
        found = self.value(call.func)
        own = None if isinstance(found, type) else inspect.getattr_static(type(found), "__call__", None)
        if isinstance(own, FunctionType) and is_users(own.__code__.co_filename):
            return CalledFunction(own, True, found, dotted(call.func))
        owner = self.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if isinstance(found, MethodType):
            owner, found, is_bound = found.__self__, found.__func__, True
        else:
            is_bound = isinstance(found, FunctionType) and _binds(owner, found)
            if isinstance(found, classmethod):
                owner, is_bound = owner if isinstance(owner, type) else type(owner), True
            found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if not isinstance(found, FunctionType) or not is_users(found.__code__.co_filename):
            return None
        name = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        return CalledFunction(found, is_bound, owner if is_bound else None, name if is_bound else "")


@dataclasses.dataclass(frozen=True)
class CalledFunction:
    """Function of the script, as it is called somewhere.

    Attributes:
        function: the function without the object that it is bound to.
        is_bound: whether its first parameter is such an object, and is not given in the call.
        owner: the object.
        owner_name: name of the object in the caller; "" if it has no name there.
    """

    function: FunctionType
    is_bound: bool
    owner: Any
    owner_name: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that a call gives by position."""
        code = self.function.__code__
        return code.co_varnames[self.is_bound : code.co_argcount]

    @property
    def own_name(self) -> str:
        """Name of the bound object in the function, as `self`; "" if there is none."""
        return self.function.__code__.co_varnames[0] if self.is_bound and self.function.__code__.co_argcount else ""

    def text(self) -> ScriptFunction:
        """Return the function with the names of its module, and of its object."""
        names = dict(self.function.__globals__)
        if self.own_name:
            names[self.own_name] = self.owner
        return ScriptFunction(self.function.__code__, names)


def _binds(owner: Any, found: FunctionType) -> bool:
    """Return whether a plain function that was found at an object comes from its class."""
    if owner is None or isinstance(owner, type | ModuleType):
        return False
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return True
    return all(one is not found for one in own.values())


def walk_tree(tree: ast.AST | None, *, inner: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions that it defines unless `inner`."""
    left = [tree] if tree is not None else []
    while left:
        node = left.pop()
        yield node
        children = ast.iter_child_nodes(node)
        left.extend(child for child in children if inner or not isinstance(child, (*FUNCTIONS, ast.ClassDef)))


def names_in(node: ast.AST) -> set[str]:
    """Return the dotted names in an expression: `progress.noise` of `progress.noise()`, and `self.step`."""
    found: set[str] = set()
    left: list[ast.AST] = [node]
    while left:
        one = left.pop()
        if name := dotted(one):
            found.add(name)
        else:
            left.extend(ast.iter_child_nodes(one))
    return found


def meets(target: ast.AST, found: set[str]) -> bool:
    """Return whether these names include a target, or an attribute of it."""
    names = names_in(target)
    return any(one == name or one.startswith(f"{name}.") for one in found for name in names)


def dotted(node: ast.AST) -> str:
    """Return `loop.sampler` for an expression of names and attributes; else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def places_in(tree: ast.AST) -> list[Any]:
    """Return all names, attributes and items in a tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript | ast.Name)]


def last_name(node: ast.AST) -> str:
    """Return the attribute, constant key or variable that a place ends with."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return str(node.slice.value) if isinstance(node.slice, ast.Constant) else last_name(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def targets_of(node: ast.Assign) -> list[ast.AST]:
    """Return the targets of an assignment, those of a tuple one by one."""
    found: list[ast.AST] = []
    for target in node.targets:
        found.extend(target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    return found


def plain_path(path: str) -> str:
    """Return a path as a script writes it, without the items of containers."""
    return re.sub(r"\[[^]]*\]", "", path)
