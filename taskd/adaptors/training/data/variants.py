"""Classes of the loaders that are kept: an object's own class, with some of its methods replaced.

No function is put into the object: that would be a cycle, and loaders end their workers when they die.
"""

from typing import Any

_CLASS: Any = vars(object)["__class__"]
"""Descriptor that sets the real class of an object: accelerate's loaders return another one as their `__class__`."""


def class_of(one: Any) -> Any:
    """Return the real class of an object."""
    return type(one)


def become(one: Any, kind: type) -> None:
    """Change the class of an object to `kind`."""
    _CLASS.__set__(one, kind)


def variant(kind: Any, body: dict[str, Any]) -> type:
    """Return a subclass of `kind` with these methods in front of its own, and with the same name and module."""
    return type(kind.__name__, (kind,), {**body, "__module__": kind.__module__, "__qualname__": kind.__qualname__})
