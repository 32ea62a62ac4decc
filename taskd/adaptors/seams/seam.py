"""One thing in torch that taskd relies on, and its comparison with the installed torch.

Rules:

1. Data: a table of `Seam`s has everything that our code overrides, calls or reads in torch.
2. If torch has changed a thing between versions, the table has a `Choice`. Its variants are named by torch's change.
   The first variant that fits is used. No other code checks a version.
3. A process compares its whole part before it replaces anything. The first difference raises `PatchError`.
4. `EXACT` is for methods that torch calls on our subclass: one more parameter would already be a call that we cannot
   take. `ACCEPTS` is for functions that we call, or that we replace and pass the call on to.
"""

import ctypes
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import WrapperDescriptorType
from typing import Any, Generic, TypeVar

from taskd.errors import PatchError

T = TypeVar("T")


class Fit(Enum):
    """The ways to compare a seam."""

    EXACT = "takes exactly"
    ACCEPTS = "accepts"
    SETS = "sets"
    HAS = "has"
    LACKS = "does not accept"
    EXPORTS = "exports"


@dataclass(frozen=True)
class TorchName:
    """The facts about the object that a torch has under one name."""

    takes: tuple[str, ...] = ()
    """Parameters if it can be called; "**" for any others."""
    sets: tuple[str, ...] = ()
    """Attributes that the constructor stores or reads."""
    has: tuple[str, ...] = ()
    """Names of its attributes. "__init__" is among them only if the object has its own: every class inherits one."""


Look = Callable[[str, str], "TorchName | str"]
"""Lookup of a module's dotted name ("" for the module itself): the facts about the object, or why there is none."""


@dataclass(frozen=True)
class Seam:
    """One thing in torch that taskd relies on: `names` are parameters, or attributes for `SETS` and `HAS`."""

    module: str
    attribute: str
    fit: Fit
    names: tuple[str, ...] = ()

    def difference(self, look: Look) -> str:
        """Return how a torch differs from this seam, "" if it fits."""
        found = look(self.module, self.attribute)
        if isinstance(found, str):
            return f"found no {self.attribute or self.module} in {self.module} ({found}), expected it there"
        if self.fit is Fit.EXPORTS:
            return ""
        present = self._present(found)
        if self._fits(present):
            return ""
        missing = ", ".join(name for name in self.names if name not in present)
        if self.fit in (Fit.SETS, Fit.HAS):
            where = ", whose constructor is where it is looked for" if self.fit is Fit.SETS else ""
            return f"found no {missing} in {self.attribute or self.module}{where}"
        return (
            f"{self.attribute} takes ({', '.join(present)}), expected that it {self.fit.value} "
            f"({', '.join(self.names)}), differing in: {missing or ', '.join(self.names)}"
        )

    def _fits(self, present: tuple[str, ...]) -> bool:
        if self.fit is Fit.EXACT:
            return present == self.names
        if self.fit is Fit.LACKS:
            return set(self.names).isdisjoint(present)
        return set(self.names) <= set(present) or "**" in present

    def _present(self, found: TorchName) -> tuple[str, ...]:
        return {Fit.SETS: found.sets, Fit.HAS: found.has}.get(self.fit, found.takes)


@dataclass(frozen=True)
class Variant(Generic[T]):
    """One way in which torch does a thing, the seams that identify it, and our code for it (`use`)."""

    name: str
    seams: tuple[Seam, ...]
    use: T

    def difference(self, look: Look) -> str:
        """Return how a torch differs from this variant, "" if it does the thing in this way."""
        return next(filter(None, (seam.difference(look) for seam in self.seams)), "")


@dataclass(frozen=True, eq=False)
class Choice(Generic[T]):
    """A thing that torch's versions do in different ways."""

    subject: str
    variants: tuple[Variant[T], ...]

    def find(self, look: Look | None = None) -> Variant[T]:
        """Return the first variant that fits, by default the installed torch. Raise `PatchError` if none does."""
        return _first_that_fits(self, look or installed)

    def difference(self, look: Look) -> str:
        """Return how a torch differs from each variant, "" if one fits."""
        differences = {variant.name: variant.difference(look) for variant in self.variants}
        if not all(differences.values()):
            return ""
        told = "; ".join(f"for {name!r}, {difference}" for name, difference in differences.items())
        return f"no known way of {self.subject}: {told}"


@cache
def _first_that_fits(choice: Choice[T], look: Look) -> Variant[T]:
    verify([choice], look)
    return next(variant for variant in choice.variants if not variant.difference(look))


Line = Seam | Choice[Any]
"""One line of a table."""


def verify(table: Iterable[Line], look: Look | None = None) -> None:
    """Compare a torch, by default the installed one, with a table. Raise `PatchError` for the first difference."""
    for line in table:
        if difference := line.difference(look or installed):
            version = torch_version()
            raise PatchError(
                f"{difference}; torch {version} is not one that this taskd knows: install a taskd for this torch"
            )


def seams_of(table: Iterable[Line]) -> Iterator[Seam]:
    """Yield all seams of a table, those of every variant too."""
    for line in table:
        if isinstance(line, Choice):
            for variant in line.variants:
                yield from variant.seams
        else:
            yield line


def torch_version() -> str:
    """Return the version of the installed torch, as its package gives it."""
    version: str = importlib.import_module("torch").__version__
    return version


def installed(module: str, attribute: str) -> TorchName | str:
    """Look a name up in the installed torch: import its module, or search a library ("libtorch_cpu.so")."""
    if module.endswith(".so"):
        return _exported(module, attribute)
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        return str(error)
    return TorchName(_parameters(found), _attributes_set(found), tuple(filter(_is_own(found), dir(found))))


def _is_own(found: object) -> Callable[[str], bool]:
    made = vars(found).get("__init__") if isinstance(found, type) else None
    constructs = made is not None and not isinstance(made, WrapperDescriptorType)  # a compiled one only raises
    return lambda name: constructs or name != "__init__"


def _exported(library: str, symbol: str) -> TorchName | str:
    import torch

    path = Path(torch.__file__).parent / "lib" / library
    try:
        getattr(ctypes.CDLL(str(path)), symbol)  # it is loaded already: this only searches it
    except (OSError, AttributeError) as error:
        return str(error)
    return TorchName()


def _parameters(found: object) -> tuple[str, ...]:
    if not callable(found):
        return ()
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # compiled, and without a signature
        return ("**",)
    return tuple("**" if one.kind is one.VAR_KEYWORD else one.name for one in parameters)


def _attributes_set(found: object) -> tuple[str, ...]:
    """Return the names that the constructor stores or reads: enough to detect that a private attribute still exists."""
    constructor = inspect.unwrap(vars(found).get("__init__", found)) if isinstance(found, type) else None
    code = getattr(constructor, "__code__", None)
    fields = tuple(getattr(found, "__dataclass_fields__", ()))
    if code is None:
        return fields
    spelt = tuple(constant for constant in code.co_consts if isinstance(constant, str))  # for `__setattr__`
    return (*code.co_names, *spelt, *fields)
