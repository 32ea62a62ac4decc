"""Every field of every message has a bound. Values beyond it are refused, and honest ones are made to fit."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from taskd.core.diagnosis.evidence import EndSigns, Evidence, Frames, PythonError, Thread
from taskd.wire import codec, text
from taskd.wire.bounds import LINE_CHARS, NAME_CHARS
from taskd.wire.codec import BadFrameError
from taskd.wire.messages import FromAgent, FromLocal, FromManager, Modules, Progress, SelfReport, ToLocal
from tests.fuzz.shapes import bounded, changed, leaves, plain
from tests.wire.test_codec import STATUS

READERS = [
    (FromAgent, codec.decode_from_agent),
    (FromManager, codec.decode_from_manager),
    (FromLocal, codec.decode_from_local),
    (ToLocal, codec.decode_to_local),
]
EVIL = "a\0b\x1b[2J\nnext\x9b1m\u2028\udcff" + "x" * 10_000


@pytest.mark.parametrize("kind", [*(kind for kind, _ in READERS), Evidence], ids=str)
def test_every_field_has_a_bound(kind: type) -> None:
    assert [path for path, leaf in leaves(inspect.type_info(kind)) if not bounded(leaf)] == []


@pytest.mark.parametrize(("kind", "read"), READERS, ids=["from agent", "from manager", "from local", "to local"])
def test_whatever_a_field_holds_it_is_taken_or_refused(kind: type, read) -> None:
    tried = taken = 0
    union = inspect.type_info(kind)
    assert isinstance(union, inspect.UnionType)
    for one in union.types:
        for _, value in changed(one, plain(one)):
            tried += 1
            try:
                read(codec.MAGIC + bytes([codec.WIRE_VERSION]) + msgspec.msgpack.encode(value))
                taken += 1
            except BadFrameError:
                pass
    assert 0.1 < taken / tried < 0.5, f"{taken} of {tried}"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_no_float_is_without_measure(number: float) -> None:
    with pytest.raises(BadFrameError, match="cannot be sent"):
        codec.encode(msgspec.structs.replace(STATUS, progress=Progress(step=1, age_s=number)))


def test_what_is_honest_and_too_much_is_made_to_fit() -> None:
    words = codec.decode_from_local(codec.encode(SelfReport(cause=EVIL, kind=EVIL)))
    assert isinstance(words, SelfReport)
    assert words.cause.startswith(r"a\x00b\x1b[2J next\x9b1m \xff" + "xxx")
    assert (len(words.cause), len(words.kind)) == (LINE_CHARS, NAME_CHARS)
    frames = Frames(threads=(Thread(EVIL, (EVIL,) * 5000),), native=EVIL * 50)
    known = Evidence(end=EndSigns(error=PythonError(EVIL, EVIL, EVIL)), frames=frames)
    read = msgspec.msgpack.decode(codec.pack(known), type=Evidence)
    assert read.end.error is not None
    assert read.end.error.message == words.cause
    assert len(read.frames.threads[0].stack) < 5000
    assert read.frames.native.count("\n") > 2, "what has lines keeps them"


def filled(kind: inspect.Type, whole: str) -> Any:
    """Return a message, or a part of one, with this in place of each of its texts."""
    match kind:
        case inspect.StructType():
            return kind.cls(**{field.name: filled(field.type, whole) for field in kind.fields})
        case inspect.UnionType():
            return filled(next(one for one in kind.types if not isinstance(one, inspect.NoneType)), whole)
        case inspect.VarTupleType():
            return (filled(kind.item_type, whole),)
        case inspect.DictType():
            return {filled(kind.key_type, whole): filled(kind.value_type, whole)}
        case inspect.StrType():
            return whole
        case inspect.EnumType():
            return next(iter(kind.cls))
    return plain(kind)


@pytest.mark.parametrize("kind", [FromLocal, ToLocal], ids=["from local", "to local"])
@pytest.mark.parametrize("whole", ["x" * (1 << 20), "\udcff" * 9000, "a\0b"], ids=["1 MiB", "not UTF-8", "NUL"])
def test_no_text_of_a_user_keeps_a_message_from_being_sent(kind: type, whole: str) -> None:
    union = inspect.type_info(kind)
    assert isinstance(union, inspect.UnionType)
    for one in union.types:
        codec.encode(filled(one, whole))


def test_what_fits_is_not_touched() -> None:
    error = PythonError("E", "größer als π", "f.py:1 in f")
    whole = Evidence(end=EndSigns(error=error), frames=Frames(native="one\n\ttwo"))
    assert msgspec.msgpack.decode(codec.pack(whole), type=Evidence) == replace(whole)


def test_more_modules_than_anybody_has_are_cut() -> None:
    read = codec.decode_from_local(codec.encode(Modules(names=(EVIL, "numpy"))))
    assert isinstance(read, Modules)
    assert read.names[1] == "numpy"


@given(st.text(st.characters(codec=None)), st.integers(1, 50))
def test_a_line_is_one_and_can_be_printed(whole: str, most: int) -> None:
    made = text.line(whole, most)
    assert made.isprintable()
    assert len(made) <= most
    assert text.line(made, most) == made
    if whole.isprintable() and len(whole) <= most:
        assert made == whole


@given(st.text(st.characters(codec=None)), st.integers(1, 50))
def test_a_page_has_nothing_but_lines(whole: str, most: int) -> None:
    made = text.page(whole, most)
    assert all(one.isprintable() for one in made.split("\n"))
    assert len(made) <= most
