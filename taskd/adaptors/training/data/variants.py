"""Classes of the loaders that are kept: an object's own class, with some of its methods replaced.

No function is put into the object: that would be a cycle, and loaders end their workers when they die.
"""

from typing import Any

_CLASS: Any = vars(object)["__class__"]
"""A loader of accelerate's says that its class is another."""


def class_of(one: Any) -> Any:
    """That of an object itself."""
    return type(one)


def become(one: Any, kind: type) -> None:
    """Have this object be of that class."""
    _CLASS.__set__(one, kind)


def variant(kind: Any, body: dict[str, Any]) -> type:
    """The class `kind` with these methods in front of its own; by its name nobody sees that."""
    return type(kind.__name__, (kind,), {**body, "__module__": kind.__module__, "__qualname__": kind.__qualname__})
