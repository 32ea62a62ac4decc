"""Values of any message, by reflection: those that a type allows, and its edges.

Rules:

1. A value consists of msgpack's types: maps, lists, numbers, texts. So it can be one that no Python type could hold.
2. No message is known by its name. A field that is added tomorrow is tried tomorrow.
"""

import math
import random
from collections.abc import Iterator
from typing import Any

from msgspec import NODEFAULT, inspect

from taskd.wire.bounds import MOST_RANKS

Value = Any
STRANGE_TEXTS = ("", "\0", "a\0b", "\x1b[2Jcleared", "two\nlines", "\x9b1m", "²", "9" * 5000, "../..", "/", "é" * 255)
STRANGE_NUMBERS = (-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63))
STRANGE_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 5e-324, 1.7e308)
OTHERS: tuple[Value, ...] = (None, True, 0, 1.5, "text", b"\xff", [], {}, [[[]]])
_MOST_MADE = 4


def leaves(kind: inspect.Type, path: str = "") -> Iterator[tuple[str, inspect.Type]]:
    """Yield every number, text and sequence below a type, each with its path."""
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            for field in kind.fields:
                yield from leaves(field.type, f"{path}.{field.name}")
        case inspect.UnionType():
            for one in kind.types:
                yield from leaves(one, path)
        case inspect.VarTupleType() | inspect.ListType():
            yield path, kind
            yield from leaves(kind.item_type, f"{path}[]")
        case inspect.DictType():
            yield path, kind
            yield from leaves(kind.key_type, f"{path}{{}}")
            yield from leaves(kind.value_type, f"{path}{{}}")
        case inspect.IntType() | inspect.FloatType() | inspect.StrType() | inspect.BytesType():
            yield path, kind


def bounded(kind: inspect.Type) -> bool:
    """Return whether a number has both bounds, if need be those of 64 bits, and any other type a length."""
    match kind:
        case inspect.IntType(ge=0, le=None, lt=None):
            return True
        case inspect.IntType() | inspect.FloatType():
            return _least(kind) is not None and _most(kind) is not None
        case inspect.StrType() | inspect.BytesType() | inspect.VarTupleType() | inspect.ListType() | inspect.DictType():
            return kind.max_length is not None
    return True


def _least(kind: inspect.IntType | inspect.FloatType) -> float | None:
    return kind.ge if kind.ge is not None else kind.gt


def _most(kind: inspect.IntType | inspect.FloatType) -> float | None:
    return kind.le if kind.le is not None else None if kind.lt is None else kind.lt - 1


def edges(kind: inspect.Type) -> Iterator[Value]:
    """Yield values at and beyond the edges of a type, allowed or not."""
    yield from OTHERS
    match kind:
        case inspect.IntType() | inspect.FloatType():
            least, most = _least(kind) or 0, _most(kind) or 0
            yield from (value for value in (least, least - 1, most, most + 1) if -(2**63) <= value < 2**64)
            yield from STRANGE_NUMBERS
            yield from STRANGE_FLOATS
        case inspect.StrType():
            yield from STRANGE_TEXTS
            most = kind.max_length or 0
            yield from ("x" * most, "x" * (most + 1))
        case inspect.BytesType():
            most = kind.max_length or 0
            yield from (b"", b"\0", b"\xff\xfe", b"x" * most, b"x" * (most + 1))
        case inspect.EnumType():
            yield from [one.value for one in kind.cls]
        case inspect.VarTupleType() | inspect.ListType():
            item = plain(kind.item_type)
            yield from ([], [item], [item, item], [item] * min((kind.max_length or 0) + 1, 1 << 17))
        case inspect.DictType():
            yield from ({}, {plain(kind.key_type): plain(kind.value_type)})


def plain(kind: inspect.Type) -> Value:
    """Return the plainest value of a type."""
    value: Value = None
    match kind:
        case inspect.StructType():
            value = _struct(kind, {field.name: plain(field.type) for field in kind.fields if field.required})
        case inspect.DataclassType():
            value = {field.name: plain(field.type) for field in kind.fields if field.required}
        case inspect.UnionType():
            value = plain(kind.types[0])
        case inspect.IntType() | inspect.FloatType():
            value = max(0, _least(kind) or 0)
        case inspect.StrType():
            value = ""
        case inspect.BytesType():
            value = b""
        case inspect.BoolType():
            value = False
        case inspect.EnumType():
            value = next(iter(kind.cls)).value
        case inspect.VarTupleType() | inspect.ListType():
            value = []
        case inspect.DictType():
            value = {}
    return value


def changed(kind: inspect.Type, value: Value) -> Iterator[tuple[str, Value]]:
    """Yield a value with each of its parts in turn at each edge, and the path to that part."""
    for edge in edges(kind):
        yield "", edge
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            yield from _with_other_fields(kind, value)
        case inspect.UnionType():
            for one in kind.types:
                yield from changed(one, value if _suits(one, value) else plain(one))
        case inspect.VarTupleType() | inspect.ListType():
            first, *rest = value if isinstance(value, list) and value else [plain(kind.item_type)]
            for path, other in changed(kind.item_type, first):
                yield f"[]{path}", [other, *rest]
        case inspect.DictType():
            for path, other in changed(kind.value_type, plain(kind.value_type)):
                yield f"{{}}{path}", {plain(kind.key_type): other}


def _with_other_fields(kind: inspect.StructType | inspect.DataclassType, value: Value) -> Iterator[tuple[str, Value]]:
    known = _fields(kind, value)
    for field in kind.fields:
        for path, other in changed(field.type, known.get(field.name, plain(field.type))):
            fields = {**known, field.name: other}
            yield f".{field.name}{path}", _struct(kind, fields) if isinstance(kind, inspect.StructType) else fields


def _fields(kind: inspect.StructType | inspect.DataclassType, value: Value) -> dict[str, Value]:
    if isinstance(value, list):
        return dict(zip([field.name for field in kind.fields], value, strict=False))
    return {field.name: value[field.name] for field in kind.fields if field.name in value}


def _suits(kind: inspect.Type, value: Value) -> bool:
    """Return whether a value of msgpack belongs to this member of a union."""
    match kind:
        case inspect.StructType():
            if kind.array_like:
                return isinstance(value, list)
            return isinstance(value, dict) and value.get(kind.tag_field or "", kind.tag) == kind.tag
        case inspect.NoneType():
            return value is None
        case inspect.DataclassType() | inspect.DictType():
            return isinstance(value, dict)
    return value is not None and not isinstance(value, dict | list)


def _struct(kind: inspect.StructType, fields: dict[str, Value]) -> Value:
    if kind.array_like:
        tag = [kind.tag] if kind.tag is not None else []
        names = [field.name for field in kind.fields]
        last = max((index for index, name in enumerate(names) if name in fields), default=-1)
        by_name = {field.name: field for field in kind.fields}
        return tag + [fields.get(name, _default(by_name[name])) for name in names[: last + 1]]
    return {**({kind.tag_field: kind.tag} if kind.tag_field else {}), **fields}


def _default(field: inspect.Field) -> Value:
    if field.default is not NODEFAULT:
        value = field.default
        return list(value) if isinstance(value, tuple) else getattr(value, "value", value)
    return plain(field.type)


def anything(kind: inspect.Type, dice: random.Random) -> Value:
    """Return a random value that the type allows, at an edge more often than by chance."""
    value: Value = None
    match kind:
        case inspect.StructType():
            value = _struct(
                kind,
                {
                    field.name: anything(field.type, dice)
                    for field in kind.fields
                    if field.required or kind.array_like or dice.random() < 0.5
                },
            )
        case inspect.DataclassType():
            value = {
                field.name: anything(field.type, dice) for field in kind.fields if field.required or dice.random() < 0.5
            }
        case inspect.UnionType():
            value = anything(dice.choice(kind.types), dice)
        case inspect.IntType():
            value = _number(kind, dice)
        case inspect.FloatType():
            value = float(_number(kind, dice)) if dice.random() < 0.5 else dice.random() * 10
        case inspect.StrType():
            value = "".join(dice.choices("ab0é-", k=dice.choice((0, 1, 8, min(64, kind.max_length or 64)))))
        case inspect.BytesType():
            value = bytes(dice.choices(range(256), k=dice.choice((0, 1, 8))))
        case inspect.BoolType():
            value = dice.random() < 0.5
        case inspect.EnumType():
            value = dice.choice(list(kind.cls)).value
        case inspect.VarTupleType() | inspect.ListType():
            value = [anything(kind.item_type, dice) for _ in range(dice.randrange(_MOST_MADE))]
        case inspect.DictType():
            value = {
                anything(kind.key_type, dice): anything(kind.value_type, dice)
                for _ in range(dice.randrange(_MOST_MADE))
            }
    return value


def _number(kind: inspect.IntType | inspect.FloatType, dice: random.Random) -> int:
    least, most = int(_least(kind) or 0), int(_most(kind) or MOST_RANKS)
    near = dice.choice((0, 1, 2, 3, 100))
    chosen = dice.choice((least + near, most - near, near, dice.randint(least, most)))
    return min(max(chosen, least), most)
