"""`taskd patch`: put the line that imports taskd into torchrun's run.py, take it out again, or report it.

Rules:

1. A file of an unknown form stays as it is, with one line that gives the reason. Only our lines ever change.
2. The file is replaced as a whole. A concurrent reader gets the old or the new file. A copy that shares its inode (the
   cache of some installers) stays as it is.
3. Light: nothing of torch or of a third party is imported. So any Python can patch the torch of another one.
"""

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from taskd.adaptors.torchrun.launcher import SED_LINE, torchrun_file
from taskd.cli.arguments import OneLineParser
from taskd.errors import PatchError

_LINE: Final = SED_LINE.encode()
_ANCHOR: Final = b"import os"
_ACTIONS: Final = ("apply", "revert", "status")
_FIND: Final = (
    "import importlib.util, os\n"
    "spec = importlib.util.find_spec('torch')\n"
    "print(os.path.join(os.path.dirname(spec.origin), 'distributed', 'run.py') if spec and spec.origin else '')\n"
)
_REFUSED: Final = 2


def patch(arguments: Sequence[str]) -> int:
    """Patch, revert or report. Return 0; 1 for a status that finds no line; 2 for a refusal."""
    parser = OneLineParser(
        prog="taskd patch",
        description=f"The line `{SED_LINE}` in torchrun's run.py: apply puts it in, revert takes it out, status "
        "reports whether it is there (exit code 1 if not).",
    )
    parser.add_argument("action", choices=_ACTIONS, help="apply, revert or status")
    parser.add_argument("--python", help="the Python that has the torch; default: the one that runs taskd")
    parser.add_argument("--file", type=Path, help="the run.py itself, in place of the one that the Python has")
    options = parser.parse_args(list(arguments))
    try:
        file = options.file or _file_of(options.python)
        if not file.is_file():
            raise PatchError(f"found no file {file}, expected torchrun's run.py")
        return _perform(options.action, file)
    except PatchError as error:
        reason = str(error)
    except OSError as error:
        place = error.filename or file
        reason = f"{place}: {error.strerror}; run.py is left as it was: run this as its owner, where it can be written"
    print(f"taskd patch: {_shown(reason)}", file=sys.stderr)
    return _REFUSED


def _shown(text: object) -> str:
    """Return a text that contains names of files as one line that every terminal can show."""
    return " ".join(str(text).encode(errors="backslashreplace").decode().splitlines())


def _file_of(python: str | None) -> Path:
    if python is None:
        return torchrun_file()
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PatchError(f"{python} does not run ({error.strerror}), expected the Python that has torch") from error
    if done.returncode or not done.stdout.strip():
        raise PatchError(f"{python} has no torch, expected an installed one: give another --python")
    return Path(done.stdout.strip())


def _perform(action: str, file: Path) -> int:
    content, shown = file.read_bytes(), _shown(file)
    count = _count(content, file)
    if action == "status":
        print(f"patched ({count} line(s)): {shown}" if count else f"not patched: {shown}")
        return 0 if count else 1
    if action == "apply":
        if count:
            print(f"patched already: {shown}")
            return 0
        _replace(file, content, _with_line(content, file))
        print(f"patched: {shown}")
        return 0
    if not count:
        print(f"not patched, nothing to revert: {shown}")
        return 0
    _replace(file, content, b"".join(_others(content)))
    print(f"reverted ({count} line(s) removed): {shown}")
    return 0


def _others(content: bytes) -> list[bytes]:
    return [line for line in content.splitlines(keepends=True) if line.rstrip(b"\r\n") != _LINE]


def _count(content: bytes, file: Path) -> int:
    """Count our lines. Raises `PatchError` if the file contains our line in another form."""
    lines = content.splitlines()
    count = lines.count(_LINE)
    if sum(_LINE in line for line in lines) != count:
        raise PatchError(f"{file} mentions the line in another form, expected it alone on its line; edit it by hand")
    return count


def _with_line(content: bytes, file: Path) -> bytes:
    """Return the content with our line before the module's own `import os`, with the same line ending.

    Raises `PatchError` if the content does not have exactly one such import.
    """
    lines = content.splitlines(keepends=True)
    anchors = [at for at, line in enumerate(lines) if line.rstrip(b"\r\n") == _ANCHOR]
    if len(anchors) != 1:
        raise PatchError(f"found {len(anchors)} lines 'import os' in {file}, expected one: this torch is not known")
    end = lines[anchors[0]].removeprefix(_ANCHOR) or b"\n"
    lines.insert(anchors[0], _LINE + end)
    return b"".join(lines)


def _replace(file: Path, old: bytes, new: bytes) -> None:
    """Replace the whole content of the file. Raises `PatchError` or `OSError`; the file then stays as it was."""
    try:
        ast.parse(new)
    except (SyntaxError, ValueError) as error:
        raise PatchError(f"{file} would not be right afterwards ({error}); it is left as it was") from error
    if _others(old) != _others(new):
        raise PatchError(f"{file} would not be right afterwards: other lines would change; it is left as it was")
    status = file.stat()
    descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as fresh:
            fresh.write(new)
            fresh.flush()
            with suppress(PermissionError):  # only root may change the owner of a file
                os.fchown(fresh.fileno(), status.st_uid, status.st_gid)
            os.fchmod(fresh.fileno(), status.st_mode & 0o7777)
            os.fsync(fresh.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
