"""Places of values outside a training function: global variables, closures, and attributes and items of these.

Rules:

1. A path begins with a global variable or one of a closure. Attributes and items follow: `progress.seen`,
   `counts['x']`, `module.name`. Local variables have no path: each call makes them anew.
2. Each access follows the whole path, since objects on it may be replaced. No property is called.
3. If two functions have different variables of one name, neither has a path.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, Final, NamedTuple

from taskd.adaptors.training.script.outside import functions_of

_CONTAINERS: Final = (dict, list)


class ValuePlace(NamedTuple):
    """Getter and setter of one value. Both raise `LookupError` if the path leads nowhere any more."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


def variables_outside(function: Any) -> dict[str, ValuePlace]:
    """Return global and closure variables that a training function and the functions of the script in it use."""
    found: dict[str, ValuePlace] = {}
    ambiguous = set[str]()
    for one in functions_of(function):
        own = {name: _global(one.__globals__, name) for name in _names(one.__code__) if name in one.__globals__}
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        for name, place in (own | {name: _cell(cell) for name, cell in cells}).items():
            if name in found and _is_another(found[name], place):
                ambiguous.add(name)
            found[name] = place
    return {name: place for name, place in found.items() if name not in ambiguous}


def place_of(path: str, variables: Mapping[str, ValuePlace]) -> ValuePlace | None:
    """Return the place that a path leads to from these variables; None if it does not lead anywhere now."""
    try:
        place = _follow(ast.parse(path, mode="eval").body, variables)
        place.get()
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError):  # the last two: it nests too deep
        return None
    return place


def _follow(node: ast.expr, variables: Mapping[str, ValuePlace]) -> ValuePlace:
    match node:
        case ast.Name():
            return variables[node.id]
        case ast.Attribute():
            holder, name = _follow(node.value, variables), node.attr
            return ValuePlace(lambda: _own(holder)[name], lambda value: _own(holder).update({name: value}))
        case ast.Subscript(slice=ast.Constant(value=key)):
            holder = _follow(node.value, variables)
            return ValuePlace(lambda: _items(holder)[key], lambda value: _items(holder).__setitem__(key, value))
    raise LookupError(ast.unparse(node))


def _own(holder: ValuePlace) -> dict[str, Any]:
    """Return the attributes of an object. Raise `LookupError` if it has none."""
    try:
        found = object.__getattribute__(holder.get(), "__dict__")
    except AttributeError:
        raise LookupError from None
    if not isinstance(found, dict):
        raise LookupError
    return found


def _items(holder: ValuePlace) -> Any:
    found = holder.get()
    if type(found) not in _CONTAINERS:
        raise LookupError
    return found


def _global(names: dict[str, Any], name: str) -> ValuePlace:
    return ValuePlace(lambda: names[name], lambda value: names.update({name: value}))


def _cell(cell: Any) -> ValuePlace:
    def get() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            raise LookupError from None

    def put(value: Any) -> None:
        cell.cell_contents = value

    return ValuePlace(get, put)


def _is_another(one: ValuePlace, other: ValuePlace) -> bool:
    try:
        return one.get() is not other.get()
    except LookupError:
        return True


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
