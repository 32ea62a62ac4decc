"""`taskd.register_fault`: a registration decides by class or by text, and a wrong one is refused."""

import pytest
import torch

import taskd
from taskd.adaptors import faults
from taskd.adaptors.faults import kind_of
from taskd.core.diagnosis.faults import FaultKind
from taskd.errors import ConfigError


class StoreError(Exception):
    """Exception of the job's own."""


class QuotaError(StoreError):
    """Exception derived from it."""


@pytest.fixture(autouse=True)
def registry():
    """Keep registrations, which belong to the process, out of each test."""
    kept = faults._registered[:]
    faults._registered.clear()
    yield
    faults._registered[:] = kept


def test_what_nobody_registered_has_no_kind():
    assert kind_of(StoreError("bucket is slow")) is None


def test_by_the_name_of_the_class_and_of_what_derives_from_it():
    taskd.register_fault("StoreError", "retry")
    assert kind_of(StoreError()) is FaultKind.RETRY
    assert kind_of(QuotaError("x")) is FaultKind.RETRY
    assert kind_of(ValueError("no store")) is None


def test_a_part_of_a_name_stands_for_no_class_below_it():
    taskd.register_fault("Store", "retry")
    assert kind_of(StoreError()) is FaultKind.RETRY
    assert kind_of(QuotaError("x")) is None


def test_by_a_name_with_its_module():
    taskd.register_fault(rf"{__name__}\.QuotaError", "node")
    assert kind_of(QuotaError()) is FaultKind.NODE
    assert kind_of(StoreError()) is None


def test_by_the_message():
    taskd.register_fault(r"bucket \w+ is slow", "retry")
    assert kind_of(ValueError("the bucket b7 is slow today")) is FaultKind.RETRY
    assert kind_of(ValueError("the bucket is slow")) is None


def test_by_class_and_message_together():
    taskd.register_fault("^ValueError: loss is nan", "fatal")
    assert kind_of(ValueError("loss is nan")) is FaultKind.FATAL
    assert kind_of(RuntimeError("loss is nan")) is None


def test_the_newest_registration_decides_and_comes_before_what_is_built_in():
    oom = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    assert kind_of(oom) is FaultKind.PROCESS
    taskd.register_fault("RuntimeError", "retry")
    assert kind_of(oom) is FaultKind.RETRY
    taskd.register_fault("out of memory", "fatal")
    assert kind_of(oom) is FaultKind.FATAL
    taskd.register_fault("RuntimeError", "retry")
    assert kind_of(oom) is FaultKind.RETRY


def test_a_registration_that_is_repeated_is_kept_once():
    for _ in range(3):
        taskd.register_fault("StoreError", "retry")
    assert len(faults._registered) == 1


def test_a_bug_that_python_tells_of_is_fatal():
    with pytest.raises(NameError) as info:
        exec("undefined_name")
    assert kind_of(info.value) is FaultKind.FATAL


@pytest.mark.parametrize(
    ("pattern", "kind", "words"),
    [
        ("x", "again", "found the kind 'again', expected one of retry, process, node, fatal"),
        ("x", None, "found the kind None"),
        ("x", FaultKind.RETRY, "found the kind <FaultKind.RETRY"),
        ("(x", "retry", r"found the pattern '\(x' \(missing \).*expected a regular expression"),
        ("", "retry", "expected a text that not every exception matches"),
        ("x*", "retry", "expected a text that not every exception matches"),
        (None, "retry", "found the pattern None"),
        (b"x", "retry", "found the pattern b'x'"),
    ],
)
def test_a_wrong_registration_is_refused_and_changes_nothing(pattern, kind, words):
    with pytest.raises(ConfigError, match=words):
        taskd.register_fault(pattern, kind)
    assert not faults._registered
