"""What the interpreter imports first in a rank and in the template: see `taskd.adaptors.torchrun.start`."""

import os
import sys

_known = frozenset(sys.modules)
_here = os.path.dirname(__file__)
_path = [entry for entry in sys.path if entry != _here]
_library = os.path.dirname(os.__file__)
_package = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
# The standard library and taskd themselves, whatever has their names in the directories that the user has put first.
_clean = [_library, f"{_library}/lib-dynload", _package, *_path]
sys.path[:] = _clean
from taskd.adaptors.torchrun.isolation import ImportIsolation  # noqa: E402
from taskd.adaptors.torchrun.start import begin  # noqa: E402

sys.path[:] = _path
begin(_here, ImportIsolation(_known, _clean))
