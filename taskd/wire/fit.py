"""Fitting of outgoing messages to the bounds of their fields, so that no honest message is rejected.

Rules:

1. Texts are made safe and shortened (`wire.text`), and sequences are cut. Numbers are not changed: a number out of its
   range is a mistake.
2. Bytes that only the kernel reads (`wire.bounds.Raw`) are never changed.
"""

import dataclasses
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from taskd.wire import text
from taskd.wire.bounds import ONLY_LINE_ENDS

_T = TypeVar("_T")


def fit(value: _T) -> _T:
    """Return a copy of a message, or of a part of a message, that fits its bounds."""
    fitted: _T = _fit(value, _kind(cast(Hashable, type(value))))
    return fitted


@cache
def _kind(cls: Hashable) -> inspect.Type:
    return inspect.type_info(cls)


def _fit(value: Any, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType():
            return msgspec.structs.replace(value, **_fields(value, kind))
        case inspect.DataclassType():
            return dataclasses.replace(value, **_fields(value, kind))
        case inspect.UnionType():
            return value if value is None else _fit(value, next(one for one in kind.types if _is(value, one)))
        case inspect.VarTupleType():
            return tuple(_fit(item, kind.item_type) for item in value[: kind.max_length])
        case inspect.DictType():
            kept = list(value.items())[: kind.max_length]
            return {_fit(key, kind.key_type): _fit(item, kind.value_type) for key, item in kept}
        case inspect.StrType(pattern=str(), max_length=int(most)):
            make = text.page if kind.pattern == ONLY_LINE_ENDS else text.line
            return make(value, most)
    return value


def _fields(value: Any, kind: inspect.StructType | inspect.DataclassType) -> dict[str, Any]:
    return {field.name: _fit(getattr(value, field.name), field.type) for field in kind.fields}


def _is(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.StructType() | inspect.DataclassType() | inspect.EnumType():
            return isinstance(value, kind.cls)
        case inspect.NoneType():
            return False
    return True
