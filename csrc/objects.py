"""Requirements of the two libraries on the program that loads them, read from their dynamic sections (elf(5)).

Rules:

1. The gate is preloaded into every program of a container, whatever libc that has. So it names no library and no
   version, and each symbol that it does not define is weak.
2. The core requires no symbol newer than glibc `OLDEST`, which torch's own wheels need too. `platform` then names the
   wheel by that glibc, as PEP 600 defines. If the rule does not hold, it names the wheel by the machine alone.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = (2, 28)
_ALLOWED: Final = ("libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1")
"""Libraries that PEP 600 lets a wheel need and a C library could need. The loader, `ld-linux…`, is allowed as well."""
_HEADER: Final = struct.Struct("<16s4x4x8xQ14xHH")
_SEGMENT: Final = struct.Struct("<I4xQQ8xQ16x")
_ENTRY: Final = struct.Struct("<qQ")
_SYMBOL: Final = struct.Struct("<IB1xHQ8x")
_NEED: Final = struct.Struct("<HHIII")
_VERSION: Final = struct.Struct("<IHHII")
_NEEDED, _STRINGS, _SYMBOLS, _HASH, _GNU_HASH = 1, 5, 6, 4, 0x6FFFFEF5
_VERNEED, _VERNEEDNUM, _VERDEF = 0x6FFFFFFE, 0x6FFFFFFF, 0x6FFFFFFC
_LOAD, _DYNAMIC, _WEAK = 1, 2, 2


@dataclass(frozen=True)
class Asked:
    """Requirements of one library.

    Attributes:
        libraries: needed libraries (DT_NEEDED).
        versions: needed versions of other libraries' symbols, such as "GLIBC_2.28".
        strong, weak: undefined symbols, by their binding.
        defines_versions: whether the library's own symbols have versions.
    """

    libraries: tuple[str, ...]
    versions: tuple[str, ...]
    strong: tuple[str, ...]
    weak: tuple[str, ...]
    defines_versions: bool

    def newest_glibc(self) -> tuple[int, ...]:
        """Return the highest version of glibc that the library names, () if it names none."""
        numbers = [version.removeprefix("GLIBC_") for version in self.versions if version.startswith("GLIBC_")]
        return max((tuple(map(int, number.split("."))) for number in numbers), default=())


def read(path: Path) -> Asked:
    """Read the requirements of a shared library for 64-bit, little-endian machines."""
    return _Object(path.read_bytes()).asked()


def gate_flaws(asked: Asked) -> list[str]:
    """Return the reasons why a gate could fail to load in some program."""
    flaws = [f"it needs the library {name}" for name in asked.libraries]
    flaws += [f"it asks for the version {name}" for name in asked.versions]
    flaws += [f"it needs the symbol {name}, which is not weak" for name in asked.strong]
    return flaws + ["its own symbols have versions"] * asked.defines_versions


def platform(plain: str, libraries: list[Asked]) -> str:
    """Return the wheel's platform: manylinux if all libraries keep rule 2, else `plain`, such as "linux_x86_64"."""
    keeps = all(
        asked.newest_glibc() <= OLDEST
        and all(name in _ALLOWED or name.startswith("ld-linux") for name in asked.libraries)
        for asked in libraries
    )
    system, _, machine = plain.partition("_")
    known = system == "linux" and machine in ("x86_64", "aarch64")
    return f"manylinux_{OLDEST[0]}_{OLDEST[1]}_{machine}" if keeps and known else plain


class _Object:
    def __init__(self, data: bytes) -> None:
        self._data = data
        magic, table, size, count = _HEADER.unpack_from(data)
        if magic[:6] != b"\x7fELF\x02\x01":
            raise ValueError("found no 64-bit little-endian ELF file")
        self._segments = [_SEGMENT.unpack_from(data, table + size * index) for index in range(count)]
        self._entries = list(self._dynamic())
        self._values = dict(self._entries)

    def asked(self) -> Asked:
        undefined = [symbol for symbol in self._symbols() if symbol[2] == 0]
        return Asked(
            libraries=tuple(self._string(value) for tag, value in self._entries if tag == _NEEDED),
            versions=tuple(self._versions()),
            strong=tuple(name for name, binding, _ in undefined if binding != _WEAK),
            weak=tuple(name for name, binding, _ in undefined if binding == _WEAK),
            defines_versions=_VERDEF in self._values,
        )

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        at = next(offset for kind, offset, _, _ in self._segments if kind == _DYNAMIC)
        while (entry := _ENTRY.unpack_from(self._data, at))[0]:
            yield entry
            at += _ENTRY.size

    def _offset(self, address: int) -> int:
        """Return the offset in the file of the byte that is mapped at this address."""
        for kind, offset, start, size in self._segments:
            if kind == _LOAD and start <= address < start + size:
                return int(offset + address - start)
        raise ValueError(f"no segment has the address {address:#x}")

    def _string(self, index: int) -> str:
        start = self._offset(self._values[_STRINGS]) + index
        return self._data[start : self._data.index(b"\0", start)].decode()

    def _symbols(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, binding and section of each symbol but the first, which is reserved. Section 0: undefined."""
        start = self._offset(self._values[_SYMBOLS])
        for index in range(1, self._symbol_count()):
            name, info, section, _ = _SYMBOL.unpack_from(self._data, start + index * _SYMBOL.size)
            yield self._string(name), info >> 4, section

    def _symbol_count(self) -> int:
        if _HASH in self._values:
            return int(struct.unpack_from("<I", self._data, self._offset(self._values[_HASH]) + 4)[0])
        start = self._offset(self._values[_GNU_HASH])
        buckets, first, filters, _ = struct.unpack_from("<4I", self._data, start)
        at = start + 16 + 8 * filters
        last = max(struct.unpack_from(f"<{buckets}I", self._data, at))
        if last < first:
            return int(first)
        chain = at + 4 * buckets
        while not struct.unpack_from("<I", self._data, chain + 4 * (last - first))[0] & 1:
            last += 1
        return int(last + 1)

    def _versions(self) -> Iterator[str]:
        if _VERNEED not in self._values:
            return
        at = self._offset(self._values[_VERNEED])
        for _ in range(self._values[_VERNEEDNUM]):
            _, count, _, first, following = _NEED.unpack_from(self._data, at)
            each = at + first
            for _ in range(count):
                _, _, _, name, step = _VERSION.unpack_from(self._data, each)
                yield self._string(name)
                each += step
            at += following
