"""Supported kernels, C libraries and sizes of shared memory."""

import pytest

from taskd.core.requirements import LEAST_GLIBC, LEAST_KERNEL, LEAST_SHARED_BYTES, too_old, unfit_shared_memory


@pytest.mark.parametrize(
    ("text", "least", "found"),
    [
        ("4.18.0-1-amd64", LEAST_KERNEL, ""),
        ("6.1.0", LEAST_KERNEL, ""),
        ("10.0", LEAST_KERNEL, ""),
        ("4.12.14-122-default", LEAST_KERNEL, "found 4.12, expected 4.18 or newer"),
        (" 2.28", LEAST_GLIBC, ""),
        (" 2.9", LEAST_GLIBC, "found 2.9, expected 2.28 or newer"),
        ("", LEAST_GLIBC, "found none, expected 2.28 or newer"),
    ],
)
def test_versions_are_compared_as_numbers(text: str, least: tuple[int, int], found: str) -> None:
    assert too_old(text, least) == found


@pytest.mark.parametrize(
    ("free", "files", "writable", "found"),
    [
        (LEAST_SHARED_BYTES, 256, True, ""),
        (LEAST_SHARED_BYTES, 0, True, ""),  # a file system that does not count its files
        (LEAST_SHARED_BYTES, 256, False, "read-only"),
        (1 << 20, 256, True, "found 1.0 MB free, expected 17 MB"),
        (LEAST_SHARED_BYTES, 4, True, "room for 4 files"),
    ],
)
def test_shared_memory_has_to_hold_the_files_of_a_node(free: int, files: int, writable: bool, found: str) -> None:
    text = unfit_shared_memory(free, files, writable=writable)
    assert found in text
    assert bool(text) == bool(found)
