"""Run the user's script as `__main__`, just as `python script.py` or `python -m module` would.

Rules:

1. What the script can see is what plain Python shows: a fresh `__main__`, `sys.argv`, `sys.path`, tracebacks without
   our frames, and the same exit status for every way to end.
2. Nothing is put back afterwards: the script owns the process, and its atexit handlers and threads still need it.
3. taskd's own preparation may fail; the script runs in any case, with one traceback in the log.
"""

import builtins
import contextlib
import ctypes
import io
import logging
import os
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

from taskd.adaptors.faults import last_words
from taskd.adaptors.torchrun.imports import after_import
from taskd.adaptors.torchrun.modules import installed_modules
from taskd.config import settings
from taskd.config.process import environment
from taskd.config.worker import WorkerConfig

if TYPE_CHECKING:
    from taskd.runtime.recorder import NullRecorder, Recorder
    from taskd.runtime.worker import WorkerLink

logger = logging.getLogger(__name__)

# What the interpreter itself calls for `-m` and for directories; typeshed does not show it.
_run_module_as_main: Final[Callable[..., object]] = vars(runpy)["_run_module_as_main"]
_get_code_from_file: Final[Callable[..., tuple[CodeType, str]]] = vars(runpy)["_get_code_from_file"]

_ROUND: Final = settings.ROUND.name
_GENERATION: Final = settings.GENERATION.name
_TERM: Final = settings.TERM.name
_PY_FILE_INPUT: Final = 257
_CANNOT_OPEN: Final = 2
_FAILED: Final = 1


_recorder: "Recorder | NullRecorder | None" = None


def prepare_rank() -> None:
    """Make this process a rank of its agent: black box, parent watch, prefix of the store's keys, control thread."""
    try:
        config = WorkerConfig.from_environment()
        if config is None:
            return
        after_import("torch.distributed.rendezvous", prefix_stores)
        _attach(config)
        from taskd.runtime.worker import start_from_environment

        link = start_from_environment(installed_modules)
        if link is not None:
            after_import("torch", lambda _torch: _install_runtime(link))
    except Exception:
        logger.exception("taskd could not prepare this rank; the script runs without recovery")


def _install_runtime(link: "WorkerLink") -> None:
    """What needs torch. Runs inside the script's own `import torch`, and must not be why that fails."""
    try:
        from taskd.adaptors.training.session import install

        install(link, int(environment()["WORLD_SIZE"]))
    except Exception:
        logger.exception("taskd could not prepare this rank's process groups; the script runs without recovery")


def _attach(config: WorkerConfig) -> None:
    from taskd.runtime.recorder import open_recorder

    global _recorder  # noqa: PLW0603 - one per process
    _recorder = recorder = open_recorder()  # loads the core, which must come before torch
    if config.blackbox is not None:
        recorder.attach(config.blackbox, config.rank, config.incarnation)
    else:
        recorder.watch_parent(config.agent_pid)


def mark_round(round_name: str, generation: str) -> dict[str, str]:
    """The variable that names a start of the whole worker group, for the processes that torchrun starts.

    Their generation stands in it: on a node whose agent is younger it may be another number for the same start.
    """
    return {_ROUND: f"{round_name}@{generation}"}


def store_prefix(env: Mapping[str, str]) -> str:
    """Prefix of the keys that a process with this environment uses, equal on all nodes of one world."""
    round_name, _, first = env.get(_ROUND, "0@0").partition("@")
    generation = env.get(_GENERATION, first)
    if generation == first:
        return f"taskd/{round_name}"
    return f"taskd/{round_name}/{generation}.{env.get(_TERM, '0')}"  # two managers may both order this generation


def prefix_stores(rendezvous: ModuleType) -> None:
    """Give every world its own keys in the store that `init_process_group` makes. Once per process.

    torch shares one store between all starts of a group, and what dead processes left in it misleads new ones.
    """
    create = rendezvous._create_c10d_store

    def _create_c10d_store(*args: object, **kwargs: object) -> object:
        return sys.modules["torch.distributed"].PrefixStore(store_prefix(environment()), create(*args, **kwargs))

    vars(rendezvous)["_create_c10d_store"] = _create_c10d_store


def forget_start_directory() -> None:
    """Undo what `python -m` did to `sys.path` for our own module."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]


def run_script(argv: Sequence[str]) -> NoReturn:
    """Run `["script.py", …]` or `["-m", "module", …]` to its end. Always leaves by SystemExit.

    Expects `forget_start_directory` to have been called.
    """
    ended_by = _outcome(list(argv))
    # Outside the handler: what the script's own hooks raise must not be chained to it.
    if ended_by is None or isinstance(ended_by, SystemExit):
        raise ended_by or SystemExit(0)
    _tell_agent(ended_by)
    _report(ended_by)


def _outcome(argv: list[str]) -> BaseException | None:
    try:
        _execute(argv)
    except BaseException as error:  # noqa: BLE001  as the interpreter does it
        return error
    return None


def _execute(argv: list[str]) -> None:
    main = _fresh_main()
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        _prepend_path(os.getcwd())
        _run_module_as_main(argv[1])
        return
    sys.argv = argv
    path = argv[0]
    if pkgutil.get_importer(path) is not None:  # a directory or an archive with a __main__.py
        _prepend_path(_absolute(path))
        _run_module_as_main("__main__", alter_argv=False)
        return
    code = _load(path)
    _prepend_path(os.path.dirname(os.path.realpath(path)))
    loader = SourceFileLoader("__main__", _absolute(path))
    vars(main).update(__file__=_absolute(path), __cached__=None, __loader__=loader)
    exec(code, vars(main))


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def _prepend_path(entry: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, entry)


def _absolute(path: str) -> str:
    """As the interpreter does it: nothing is simplified."""
    return os.path.join(os.getcwd(), path)


def _load(path: str) -> CodeType:
    full = _absolute(path)
    if path.endswith(".pyc"):
        loaded: CodeType = _get_code_from_file("__main__", full)[0]
        return loaded
    try:
        with io.open_code(full) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {full!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(_CANNOT_OPEN) from None
    return compile(source, full, "exec", dont_inherit=True)


def _tell_agent(error: BaseException) -> None:
    """Say what this process dies of, in the black box too. Of a rank alone: not of a process that it has forked."""
    if _recorder is not None:
        _recorder.last_words(error)
    runtime = sys.modules.get("taskd.runtime.worker")
    link: WorkerLink | None = runtime.current() if runtime is not None else None
    if link is not None:
        link.last_words(*last_words(error))


def _report(error: BaseException) -> NoReturn:
    """Show an exception as the interpreter would, and leave with the status that it would give."""
    trace = _without_our_frames(error.__traceback__)
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as broken:  # noqa: BLE001  the script's own hook failed
        sys.stderr.write("Error in sys.excepthook:\n")
        traceback.print_exception(broken.with_traceback(_without_our_frames(broken.__traceback__)))
        sys.stderr.write("\nOriginal exception was:\n")
        traceback.print_exception(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        _end_by_sigint()
    raise SystemExit(_FAILED)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _end_by_sigint() -> None:
    """Let the interpreter end by SIGINT after its clean-up, as after an uncaught KeyboardInterrupt.

    It does so if one left code that was run through its top-level C function; there is no other way to ask for it.
    """
    namespace = ctypes.py_object({"__builtins__": builtins})
    run = ctypes.pythonapi.PyRun_String
    run.restype = ctypes.py_object
    with contextlib.suppress(KeyboardInterrupt):
        run(b"raise KeyboardInterrupt", _PY_FILE_INPUT, namespace, namespace)
