"""Generate taskd/runtime/_box.py, the cffi view of csrc/taskd.h (out-of-line ABI mode: no parser at run time).

The header is the only source, so Python and C cannot drift apart unnoticed. cffi is given its declarations and its
integer constants, without comments and other preprocessor lines.
"""

import contextlib
import io
import re
from pathlib import Path

from cffi import FFI

HEADER = Path(__file__).with_name("taskd.h")
MODULE = "taskd.runtime._box"
CONSTANT = re.compile(r"#define \w+ -?\d+")
MYPY_LINE = "# mypy: ignore-errors\n"


def declarations(header: str) -> str:
    """Return the parts of a header that cffi can read: constants as `#define NAME number`, structs and functions."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("#") or CONSTANT.fullmatch(line))


def write_module(target: Path) -> None:
    """Write the generated module to `target`."""
    ffi = FFI()
    ffi.cdef(declarations(HEADER.read_text(encoding="utf-8")))
    ffi.set_source(MODULE, None)
    draft = target.with_name(target.name + ".draft")
    with contextlib.redirect_stdout(io.StringIO()):  # cffi prints what it writes; pip's output is for errors
        ffi.emit_python_code(str(draft))
    text = MYPY_LINE + draft.read_text(encoding="utf-8")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)
