"""Well-typed messages by reflection: most refer to existing objects, some lie at an edge, few just beyond it.

Rules:

1. A value consists of msgpack's types, as in `shapes.py`. It may break the limits of a frame, and must be refused then.
2. No message is known by its name. A field's name selects existing objects: ranks, agents, generations, terms.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from taskd.core.diagnosis.evidence import Evidence
from taskd.wire import codec
from tests.fuzz.shapes import Value, anything, edges

_BEYOND: Final = 0.004
"""Share of numbers, texts and sequences that lie at an edge or beyond it. A message has about twenty of them."""
_KNOWN: Final = 0.85
"""Share of fields with an existing object, if one of their name exists."""
_LARGE: Final = 5000
"""Characters or items from which on an edge is tried rarely. It costs as much as a hundred other messages."""
_RARELY: Final = 0.02
_HEADER: Final = codec.MAGIC + bytes([codec.WIRE_VERSION])

Known = Mapping[str, Sequence[Value]]
_EVIDENCE: Final = inspect.type_info(Evidence)


class Maker:
    """Makes frames of the messages of one union. `known` returns the objects that exist then, by field names."""

    def __init__(self, union: Any, dice: random.Random, known: Callable[[], Known]) -> None:
        kind = inspect.type_info(union)
        assert isinstance(kind, inspect.UnionType)
        self._kinds = [one for one in kind.types if isinstance(one, inspect.StructType)]
        self._dice = dice
        self._known = known
        self._names: Known = {}

    def frame(self, name: str | None = None, **fields: Value) -> bytes:
        """Return one message, of a given type if need be, with some fields given."""
        self._names = self._known()
        kinds = [kind for kind in self._kinds if name in (None, kind.cls.__name__)]
        value = self._value(self._dice.choice(kinds), "")
        value.update({key: one for key, one in fields.items() if key in value})
        return _HEADER + msgspec.msgpack.encode(value)

    def _value(self, kind: inspect.Type, name: str) -> Value:
        dice = self._dice
        match kind:
            case inspect.StructType():
                return self._struct(kind)
            case inspect.DataclassType():
                return {field.name: self._value(field.type, field.name) for field in kind.fields if self._has(field)}
            case inspect.UnionType():
                return self._value(dice.choice(kind.types), name)
            case inspect.RawType():
                return self._value(_EVIDENCE, "")
        return self._edge(kind) if dice.random() < _BEYOND else self._part(kind, name)

    def _part(self, kind: inspect.Type, name: str) -> Value:
        dice = self._dice
        match kind:
            case inspect.IntType() | inspect.FloatType() | inspect.StrType():
                if name in self._names and dice.random() < _KNOWN:
                    return dice.choice(self._names[name])
            case inspect.VarTupleType() | inspect.ListType():
                return [self._value(kind.item_type, name) for _ in range(dice.choice((0, 1, 2, 2, 3)))]
            case inspect.DictType():
                keys = (self._key(kind.key_type) for _ in range(dice.choice((0, 1, 2, 3))))
                return {key: self._value(kind.value_type, name) for key in keys}
        return anything(kind, dice)

    def _struct(self, kind: inspect.StructType) -> Value:
        made = {f.name: self._value(f.type, f.name) for f in kind.fields if kind.array_like or self._has(f)}
        if kind.array_like:
            return [*([kind.tag] if kind.tag is not None else []), *made.values()]
        return {**({kind.tag_field: kind.tag} if kind.tag_field else {}), **made}

    def _has(self, field: inspect.Field) -> bool:
        return field.required or field.name in self._names or self._dice.random() < 0.3

    def _key(self, kind: inspect.Type) -> Value:
        key = self._value(kind, "rank" if isinstance(kind, inspect.IntType) else "key")
        return key if isinstance(key, int | str) else repr(key)

    def _edge(self, kind: inspect.Type) -> Value:
        value = self._dice.choice(list(edges(kind)))
        large = isinstance(value, str | list) and len(value) > _LARGE
        return value if not large or self._dice.random() < _RARELY else anything(kind, self._dice)
