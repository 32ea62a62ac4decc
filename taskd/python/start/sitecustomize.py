"""What the interpreter imports first in a rank and in the template: see `taskd.adaptors.torchrun.start`.

The interpreter shows what is raised here, and then runs the script all the same. That is right for a rank. A template
is no rank: it would train alone and overwrite the job's files. So it ends here, whatever is raised.
"""

import os
import sys

_known = frozenset(sys.modules)
_here = os.path.dirname(__file__)
_path = [entry for entry in sys.path if entry != _here]
_library = os.path.dirname(os.__file__)
_package = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
# The standard library and taskd themselves, whatever has their names in the directories that the user has put first.
_clean = [_library, f"{_library}/lib-dynload", _package, *_path]


def _begin() -> None:
    sys.path[:] = _clean
    from taskd.adaptors.torchrun.isolation import ImportIsolation
    from taskd.adaptors.torchrun.start import begin

    sys.path[:] = _path
    begin(_here, ImportIsolation(_known, _clean))


if sys.argv[-1:] == ["taskd.python.template"]:
    try:
        _begin()
    except BaseException:  # noqa: BLE001 - whatever it is, the script must not run
        try:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
else:
    _begin()
