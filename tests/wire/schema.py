"""Every message between nodes as text: `python -m tests.wire.schema` records it for the present wire version.

Rules:

1. The text holds what two builds must agree on: tags, fields in their order, types with their bounds, members of enums,
   defaults, and how keys are made of a secret.
2. A record is replaced only under a higher `WIRE_VERSION`: two builds of one version understand each other.
"""

import hashlib
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, inspect

from taskd.core.diagnosis.evidence import Evidence
from taskd.runtime.links.identity import Role, keys_from_secret
from taskd.wire import codec
from taskd.wire.messages import FromAgent, FromManager

RECORD = Path(__file__).with_name("schema.txt")
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern")


def schema() -> str:
    """Return the text of this checkout, without its version."""
    known: dict[str, str] = {}
    for kind in (FromAgent, FromManager, Evidence):
        _name(inspect.type_info(kind), known)
    return "".join([*_frame(), *(known[name] for name in sorted(known))])


def _frame() -> Iterator[str]:
    for role in Role:
        public = keys_from_secret(b"a secret", role, "a job").public
        yield f"key of {role.name}: {hashlib.sha256(public).hexdigest()[:16]}\n"
    yield f"frame: {codec.MAGIC!r} version map\n"


def _name(kind: inspect.Type, known: dict[str, str]) -> str:
    """Return a type's name as its users write it. Its parts are added to `known`."""
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            name = kind.cls.__name__
            if name not in known:
                known[name] = ""  # it may hold itself
                known[name] = "".join(_lines(name, kind, known))
            return name
        case inspect.EnumType():
            members = ", ".join(repr(one.value) for one in kind.cls)
            known[kind.cls.__name__] = f"{kind.cls.__name__}: {members}\n"
            return kind.cls.__name__
        case inspect.UnionType():
            return " | ".join(sorted(_name(one, known) for one in kind.types))
        case inspect.VarTupleType() | inspect.ListType():
            return f"[{_name(kind.item_type, known)}]{_bounds(kind)}"
        case inspect.TupleType():
            return f"({', '.join(_name(one, known) for one in kind.item_types)})"
        case inspect.DictType():
            return f"{{{_name(kind.key_type, known)}: {_name(kind.value_type, known)}}}{_bounds(kind)}"
    return f"{type(kind).__name__.removesuffix('Type').lower()}{_bounds(kind)}"


def _lines(name: str, kind: inspect.StructType | inspect.DataclassType, known: dict[str, str]) -> Iterator[str]:
    shape = ""
    if isinstance(kind, inspect.StructType):
        shape = f" tag {kind.tag_field}={kind.tag}" * (kind.tag is not None) + " in order" * kind.array_like
    yield f"{name}:{shape}\n"
    for field in kind.fields:
        yield f"  {field.encode_name}: {_name(field.type, known)}{_default(field)}\n"


def _default(field: inspect.Field) -> str:
    if field.required:
        return ""
    value: Any = field.default if field.default is not NODEFAULT else "made"
    return f" = {value.value if isinstance(value, Enum) else value!r}"


def _bounds(kind: inspect.Type) -> str:
    given = [f"{name}={getattr(kind, name)!r}" for name in _BOUNDS if getattr(kind, name, None) is not None]
    return f"<{' '.join(given)}>" if given else ""


def recorded() -> tuple[int, str]:
    """Return version and text of the record."""
    first, _, text = RECORD.read_text().partition("\n")
    return int(first.removeprefix("wire version ")), text


def main() -> int:
    """Record the present messages. Return the exit status."""
    version, text = recorded() if RECORD.exists() else (0, "")
    if text != schema() and version >= codec.WIRE_VERSION:
        print(f"found other messages than wire version {version} has; raise WIRE_VERSION in taskd/wire/codec.py first")
        return 1
    RECORD.write_text(f"wire version {codec.WIRE_VERSION}\n{schema()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
