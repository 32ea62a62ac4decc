"""Callables that replace a function without a trace."""

import contextlib
import copy
import gc
import importlib
import inspect
import json
import pickle
import subprocess
import sys
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.adaptors.torchrun.imports import after_import
from taskd.runtime.worker import frameless
from taskd.runtime.worker.frameless import (
    ORIGINAL,
    Steps,
    around,
    caller,
    finish,
    followed,
    instead,
    original_of,
    sent_on,
)

Wrap = Callable[..., Any]


class Thing:
    def do(self, given: int = 1, *, how: str = "") -> int:
        """Do it."""
        warnings.warn("one level out", stacklevel=2)
        if how == "wrong":
            raise ValueError(given)
        if how == "end":
            raise StopIteration(given)
        return given


def passing(*_: Any, **__: Any) -> Steps:
    return (yield ORIGINAL)


@pytest.fixture(params=["core", "Python"])
def wraps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with both implementations."""
    if request.param == "Python":
        monkeypatch.setattr(frameless, "_kind", lambda: None)


@pytest.fixture
def thing() -> Iterator[Thing]:
    stock = Thing.do
    Thing.do = around(stock, passing)  # type: ignore[method-assign]
    try:
        yield Thing()
    finally:
        Thing.do = stock  # type: ignore[method-assign]


def test_it_looks_like_the_original(thing: Thing) -> None:
    stock = original_of(Thing.do)
    assert Thing.do is not stock
    assert Thing.do == stock
    assert {stock: 1}[Thing.do] == 1
    assert {Thing.do: 1}[stock] == 1
    assert inspect.isfunction(Thing.do)
    assert inspect.ismethod(thing.do)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__code__", "__defaults__", "__annotations__"):
        assert getattr(Thing.do, name) == getattr(stock, name)
    assert not hasattr(Thing.do, "__wrapped__")
    assert inspect.signature(Thing.do) == inspect.signature(stock)
    assert str(inspect.signature(thing.do)) == "(given: int = 1, *, how: str = '') -> int"
    assert inspect.getsource(Thing.do) == inspect.getsource(stock)
    assert repr(Thing.do) == repr(stock)


def test_it_is_pickled_and_copied_by_name(monkeypatch: pytest.MonkeyPatch, thing: Thing) -> None:
    monkeypatch.setattr(json, "dumps", around(json.dumps, passing))
    assert pickle.loads(pickle.dumps(json.dumps)) is json.dumps
    assert copy.deepcopy(json.dumps) is json.dumps
    own = around(thing.do, passing)
    with pytest.warns(UserWarning, match="one level out"):
        assert pickle.loads(pickle.dumps(own))(3) == 3
    kept = json.dumps
    monkeypatch.undo()
    assert pickle.loads(pickle.dumps(kept)) is json.dumps
    assert copy.deepcopy(kept) is json.dumps


class Counter:
    def __init__(self) -> None:
        self.left = 2
        self.next = around(self.next, passing)  # type: ignore[method-assign]

    def next(self) -> int:
        self.left -= 1
        return self.left


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_an_object_that_holds_one_is_copied_with_its_own(copied: Callable[[Counter], Counter]) -> None:
    first = Counter()
    second = copied(first)
    assert [second.next(), second.next()] == [1, 0]
    assert first.left == (2 if copied is not copy.copy else 0)


def test_a_warning_names_the_callers_line(thing: Thing) -> None:
    with pytest.warns(UserWarning, match="one level out") as known:
        thing.do()
    assert known[0].filename == __file__
    assert "thing.do()" in Path(__file__).read_text().splitlines()[known[0].lineno - 1]


@pytest.mark.filterwarnings("ignore:one level out")
@pytest.mark.parametrize("how", ["wrong", "end"])
@pytest.mark.parametrize("body", [passing, None])
def test_an_error_keeps_its_frames(how: str, body: Any) -> None:
    errors: list[BaseException] = []
    own = around(Thing.do, body) if body else followed(Thing.do, failed=errors.append)
    with pytest.raises((ValueError, StopIteration)) as raised:
        own(Thing(), 7, how=how)
    assert type(raised.value) is (ValueError if how == "wrong" else StopIteration)
    names = [one.name for one in traceback.extract_tb(raised.value.__traceback__)]
    assert names == ["test_an_error_keeps_its_frames", "do"]
    assert raised.value.__context__ is None
    assert errors == ([] if body else [raised.value])


@pytest.mark.usefixtures("wraps")
def test_a_body_decides() -> None:
    seen: list[object] = []

    def body(*args: Any, **options: Any) -> Steps:
        seen.append((args, options))
        with pytest.raises(ZeroDivisionError):
            yield (lambda: 1 / 0), (), {}
        first = yield ORIGINAL
        second = yield divmod, (9, first), {}
        return [first, second]

    assert around(max, body)(2, 4, key=abs) == [4, (2, 1)]
    assert seen == [((2, 4), {"key": abs})]


@pytest.mark.usefixtures("wraps")
def test_a_body_may_answer_alone_or_raise() -> None:
    def alone(given: int) -> Steps:
        if given < 0:
            raise KeyError(given)
        return -given
        yield ORIGINAL

    assert around(abs, alone)(3) == -3
    with pytest.raises(KeyError):
        around(abs, alone)(-3)
    assert instead(abs, max)(3, 4) == 4
    assert finish(alone(5)) == -5


class Ends:
    def __init__(self) -> None:
        self.left = 2

    def __iter__(self) -> "Ends":
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration("last")
        self.left -= 1
        return self.left


@pytest.mark.usefixtures("wraps")
def test_an_iterator_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ends, "__next__", around(Ends.__next__, passing))
    assert list(Ends()) == [1, 0]
    ends = Ends()
    assert [next(ends), next(ends)] == [1, 0]
    with pytest.raises(StopIteration) as raised:
        next(ends)
    assert raised.value.value == "last"
    assert raised.value.__cause__ is None

    def wrong(given: Any) -> Steps:
        yield ORIGINAL
        raise RuntimeError(given)

    with pytest.raises(RuntimeError):
        around(iter, wrong)(ends)


@pytest.mark.usefixtures("wraps")
def test_an_error_may_be_answered_and_replaced() -> None:
    def body(given: Any) -> Steps:
        try:
            return (yield ORIGINAL)
        except TypeError:
            return None
        except ValueError as error:
            raise KeyError from error

    own = around(int, body)
    assert own("3") == 3
    assert own(None) is None
    with pytest.raises(KeyError) as raised:
        own("three")
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.usefixtures("wraps")
def test_what_follows_is_called_once() -> None:
    said: list[Any] = []
    own = followed(int, lambda: said.append("returned"), said.append)
    assert own("3") == 3
    assert said == ["returned"]
    with pytest.raises(ValueError, match="three") as raised:
        own("three")
    assert said == ["returned", raised.value]

    def refuse() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        followed(int, refuse)("3")


@pytest.mark.usefixtures("wraps")
def test_a_method_may_be_sent_on_to_another() -> None:
    class Sent:
        do = sent_on(Thing.do, lambda one: one.inner.index)

        def __init__(self) -> None:
            self.inner = [3, 4, 5]

    assert Sent().do(4, 1) == 1
    assert Sent.do.__name__ == "do"
    with pytest.raises(ValueError, match="7 is not in list"):
        Sent().do(7)
    with pytest.raises(AttributeError):
        Sent.do(3, 7)


@pytest.mark.usefixtures("wraps")
def test_a_body_knows_who_called() -> None:
    def body(*_: Any) -> Steps:
        return (yield ORIGINAL), caller().f_code.co_name

    assert around(int, body)("3") == (3, "test_a_body_knows_who_called")


def test_a_cycle_through_it_is_collected() -> None:
    class Holder:
        def own(self) -> int:
            return 1

    holder: Any = Holder()
    holder.own = followed(holder.own, lambda: None)
    known, of_call = weakref.ref(holder), weakref.ref(holder.own)
    assert holder.own() == 1
    del holder
    gc.collect()
    assert known() is None
    assert of_call() is None


def test_nothing_leaks() -> None:
    def wrong(_given: object) -> None:
        raise ValueError

    marker = object()
    calls = [around(wrong, passing), followed(wrong, failed=lambda _: None), around(id, passing), followed(id, int)]

    def call() -> None:
        for one in calls:
            with contextlib.suppress(ValueError):
                one(marker)

    call()
    before = sys.getrefcount(marker), sys.getrefcount(wrong), sys.getrefcount(None)
    for _ in range(1000):
        call()
    after = sys.getrefcount(marker), sys.getrefcount(wrong), sys.getrefcount(None)
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 100


COMPILED = """
import sys
import torch
from taskd.runtime.worker import frameless
from taskd.runtime.worker.frameless import around

if sys.argv[1] == "Python":
    frameless._kind = lambda: None

called = []

def body(*args, **options):
    called.append(1)
    return (yield None)

def doubled(rows, by=2):
    return rows * by

doubled = around(doubled, body)
compiled = torch.compile(lambda rows: doubled(rows) + doubled(rows, by=3), fullgraph=True, backend="eager")
print([compiled(torch.ones(1)).item() for _ in range(2)], len(called), doubled(torch.ones(1)).item(), len(called))
"""


@pytest.mark.parametrize("implementation", ["core", "Python"])
def test_a_compiled_function_has_the_original_inlined(implementation: str) -> None:
    """Run in a process of its own: torch.compile changes the random numbers of later tests in its process."""
    command = [sys.executable, "-c", COMPILED, implementation]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[5.0, 5.0] 0 2.0 1\n"


def test_a_module_that_warns_at_its_import_names_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warns_here.py").write_text("import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    done: list[types.ModuleType] = []
    after_import("warns_here", done.append)
    with pytest.warns(DeprecationWarning, match="old") as known:
        import warns_here  # type: ignore[import-not-found]
    assert done == [warns_here]
    assert known[0].filename == __file__
    sys.modules.pop("warns_here")
    (tmp_path / "warns_here.py").write_text("1 / 0\n")
    importlib.invalidate_caches()
    after_import("warns_here", done.append)
    with pytest.raises(ZeroDivisionError) as raised:
        import warns_here
    assert not [one for one in traceback.extract_tb(raised.value.__traceback__) if "/taskd/adaptors/" in one.filename]


WITHOUT_CORE = """
import taskd.runtime.box.shim as shim
from taskd.errors import ShimError

def refuse():
    raise ShimError("none")

shim.core = refuse
from taskd.runtime.worker.frameless import around, original_of

def body(*_):
    return (yield None) + 1

own = around(int, body)
print(own("3"), original_of(own))
"""


def test_without_the_core_it_has_a_frame() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_CORE], capture_output=True, text=True, check=True)
    assert done.stdout == "4 <class 'int'>\n"
