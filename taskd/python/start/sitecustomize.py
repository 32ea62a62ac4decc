"""First import of the interpreter in a rank and in the template: see `taskd.adaptors.torchrun.start`.

The interpreter prints an exception raised here, and then runs the script. A rank may continue like that. A template
holds no rank: it would train alone and overwrite the job's files. So any exception ends a template.
"""

import os
import sys

_known = frozenset(sys.modules)
_here = os.path.dirname(__file__)
_path = [entry for entry in sys.path if entry != _here]
_library = os.path.dirname(os.__file__)
_package = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
# The standard library and taskd come first: a module of the same name in a directory of the user must not shadow them.
_clean = [_library, f"{_library}/lib-dynload", _package, *_path]


def _begin() -> None:
    sys.path[:] = _clean
    from taskd.adaptors.torchrun.isolation import ImportIsolation
    from taskd.adaptors.torchrun.start import begin

    sys.path[:] = _path
    begin(_here, ImportIsolation(_known, _clean))


def _step_aside() -> None:
    """Import the machine's own `sitecustomize`, and nothing of taskd."""
    ours = sys.modules.pop("sitecustomize")
    sys.path[:] = _path
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise  # the interpreter prints the error
    finally:
        sys.modules.setdefault("sitecustomize", ours)


_wrapped = os.environ.get("TASKD_WRAPPED")  # environ: another interpreter may not be able to import taskd.config
if _wrapped not in (None, "", f"{sys.implementation.cache_tag}:{sys.prefix}"):
    _step_aside()
elif sys.argv[-1:] == ["taskd.python.template"]:  # `command.TEMPLATE`, before anything of taskd is imported
    try:
        _begin()
    except BaseException:  # noqa: BLE001 - after any exception the script must not run
        try:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
else:
    _begin()
