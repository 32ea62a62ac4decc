"""The template and its standbys: processes that have imported torch before a rank needs them.

Rules:

1. A template forks only while it has one thread. It may have more after its imports, or its children could not use the
   accelerator. Then it is itself the one standby, and reports `threads` > 1 in its Hello.
2. The template sends a Hello with `threads=0` when it has connected. It sends another with its real count when it can
   serve, and after each `Modules`.
3. A standby is forked twice, so that the agent (the subreaper) is its parent. It waits for `Become` in a plain receive
   call. A process that reads the end of the agent's socket ends at once, by `os._exit`: no clean-up is needed here.
4. A standby that becomes a rank returns to the interpreter, which then runs the script as any other.
"""

import contextlib
import fcntl
import gc
import importlib
import io
import linecache
import logging
import os
import random
import select
import signal
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

from msgspec.structs import replace
from typing_extensions import assert_never

from taskd.adaptors.seams.parts import IN_RANK
from taskd.adaptors.torchrun.collector import no_collections
from taskd.adaptors.torchrun.command import START
from taskd.adaptors.torchrun.prefault import Range, copy_memory, map_files, mapped_files
from taskd.adaptors.torchrun.quiet_imports import import_quietly
from taskd.adaptors.torchrun.standing_back import standing_back
from taskd.config.process import forget_preload, forget_start, replace_environment, take_over
from taskd.config.settings import DESCRIPTORS, SIGCHLD_IGNORED
from taskd.config.worker import TemplateConfig
from taskd.core.nodecheck.probes import CHECK_NAME
from taskd.runtime.system.own_sockets import connect_own
from taskd.runtime.system.packets import receive_packet
from taskd.runtime.system.processes import call_me
from taskd.runtime.system.sigchld import ignore_sigchld
from taskd.wire.codec import decode_to_local, encode
from taskd.wire.messages import (
    Abandon,
    AccountRequest,
    Hello,
    Join,
    Modules,
    Pause,
    PeersKey,
    Release,
    ToLocal,
)
from taskd.wire.standbys import Become, Fork, Prepare, Probed, RunCheck

logger = logging.getLogger(__name__)

DEFAULT_MODULES: Final = (
    "torch",
    "torch.distributed",
    "torch.distributed.nn.functional",  # binds the default group at import: must be there before the first init
    "torch._dynamo",  # AdamW, DDP and FSDP import it at first use, which takes seconds
    "torch.nn.parallel",
    "torch.optim",
    "taskd.adaptors.training.session",
    "taskd.runtime.worker.worker",
)
CHECKING_MODULES: Final = (
    "taskd.adaptors.training.proof.alike",
    "taskd.adaptors.training.proof.first_batches",
    "taskd.adaptors.training.proof.looks",
    "taskd.adaptors.training.proof.parameters",
    "taskd.adaptors.training.proof.reading",
    "taskd.adaptors.training.proof.self_check",
    "taskd.adaptors.training.proof.setup_facts",
)
"""Further modules for a new process of a job that checks itself: their import takes 80 ms of a recovery."""
_QUOTED_MODULES: Final = (
    "torch.random",
    "torch.cuda",
    "torch.cuda.random",
    "torch.xpu",
    "torch.xpu.random",
    "torch.mtia",
)
"""Modules with lines in the stack that `torch.manual_seed` keeps for an error's text. Their first read takes 5 ms."""
_ACCELERATORS: Final = ("torch.cuda", "torch.xpu", "torch.npu", "torch.mtia")
_STREAMS: Final = {1: "stdout", 2: "stderr"}
_BREATH_MS: Final = 1
"""Pause between two pieces of the work that a standby does ahead, in ms: other processes train meanwhile."""


def serve(config: TemplateConfig) -> Become:
    """Run a template, and each standby that it forks, until the process becomes a rank or the agent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    template = Template(str(config.agent_socket), copies=not config.shared, checks=config.checks)
    template.load(config.preload)
    return template.serve()


class Template:
    """Server of the agent's messages until this process, or one that it forked, is to become a rank."""

    def __init__(self, agent_socket: str, *, copies: bool, checks: bool = False) -> None:
        """Connect to the agent. `copies`: standbys copy memory before they need it. `checks`: the job checks itself."""
        self._path = agent_socket
        self._copies, self._checks = copies, checks
        self._link = connect(agent_socket, Hello(role="template", pid=os.getpid(), threads=0))
        self._threads = 0
        self._files: list[Range] = []
        self._has_torch = False

    def load(self, names: Iterable[str]) -> None:
        """Import torch and these modules, and report this process's number of threads to the agent."""
        with _ending_with(self._link), no_collections(), standing_back(self._link):
            if not self._has_torch:
                self._has_torch = True
                _load_core()
                import_quietly(DEFAULT_MODULES)
                _exercise()  # before modules of others, which may change what torch does
            import_quietly(names)
            if self._checks:
                _prepare_checks()
            _read_sources()
            for part in IN_RANK:
                part.misfit()  # the result is kept: a newcomer has no time to compare
        self._files = mapped_files()
        self._threads = _count_threads() if _children_can_use_devices() else max(2, _count_threads())
        self._say_hello()

    def serve(self) -> Become:
        """Answer the agent. Returns in the process that is to become a rank, with no other link to the agent open."""
        while True:
            become = self._answer(receive(self._link))
            if become is not None:
                return become

    def _answer(self, message: ToLocal) -> Become | None:
        match message:
            case Become():
                self._link.close()
                return message
            case RunCheck():
                probe(self._link, message)
            case Modules(names=names):
                self.load(names)
            case Fork(count=count):
                return self._fork(count)
            case Pause() | Join() | Release() | Abandon() | PeersKey() | AccountRequest() | Prepare():
                logger.warning(
                    "the agent sent %s to a template, expected Fork, Modules or Become", type(message).__name__
                )
            case _:
                assert_never(message)
        return None

    def _fork(self, count: int) -> Become | None:
        if self._threads > 1:
            self._say_hello()
            return None
        gc.freeze()  # the children's collector then never writes to the present pages
        for _ in range(count):
            if _fork_twice():
                self._link.close()
                return await_rank(self._path, self._files, copies=self._copies)
        return None

    def _say_hello(self) -> None:
        self._link.send(encode(Hello(role="template", pid=os.getpid(), threads=self._threads)))


def connect(path: str, hello: Hello) -> socket.socket:
    """Return a link to the agent, with the first message sent. Ends the process if the agent has gone."""
    try:
        link = connect_own(path)
        link.send(encode(hello))
    except OSError:
        os._exit(0)
    return link


def receive(link: socket.socket) -> ToLocal:
    """Return the next message of the agent. Ends the process if the agent has gone."""
    try:
        frame = receive_packet(link)
    except ConnectionError:
        frame = b""
    if not frame:
        os._exit(0)
    return decode_to_local(frame)


def await_rank(path: str, files: Iterable[Range], *, copies: bool) -> Become:
    """Return the order to become a rank, and obey other orders until then. `copies`: copy memory at `Prepare`."""
    with connect(path, Hello(role="standby", pid=os.getpid())) as link:
        poller = select.poll()
        poller.register(link, select.POLLIN)

        def needed() -> bool:
            return bool(poller.poll(_BREATH_MS))

        map_files(files, needed)
        while True:
            match receive(link):
                case Become() as become:
                    return become
                case RunCheck() as check:
                    probe(link, check)
                case Prepare():
                    map_files(files, needed)  # the message itself may have ended the first try
                    if copies:
                        copy_memory(needed)
                case other:
                    logger.warning("the agent sent %s to a standby, expected Become", type(other).__name__)


def probe(link: socket.socket, message: RunCheck) -> NoReturn:
    """Check this node instead of becoming a rank, send the results, and end."""
    from taskd.adaptors.nodecheck.probe import run_probe

    call_me(CHECK_NAME)
    order = message.order
    if order.own:  # sent at once: a trial may end by SIGKILL
        link.send(encode(Probed(result=run_probe(replace(order, trial=None)))))
    if order.trial is not None:
        link.send(encode(Probed(result=run_probe(replace(order, own=False)))))
    os._exit(0)


def take_rank(become: Become) -> None:
    """Turn this process into the equivalent of a fresh one for that rank after its imports."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    if become.cwd is not None:
        os.chdir(become.cwd)
    replace_environment(become.env)
    forget_start(START)
    forget_preload()
    take_over(DESCRIPTORS)  # done by the template
    if take_over(SIGCHLD_IGNORED):
        ignore_sigchld()
    _redirect(become.stdout, 1)
    _redirect(become.stderr, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.invalidate_caches()
    _forget_warnings()
    _reseed()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:  # its children find a relative script from here
        vars(multiprocessing)["ORIGINAL_DIR"] = None if become.cwd is None else os.fsdecode(become.cwd)
    argv = [os.fsdecode(argument) for argument in become.argv]
    sys.orig_argv = [sys.executable, "-u", *argv]  # for scripts that run themselves
    sys.argv[:] = ["-m", *argv[2:]] if argv[0] == "-m" else argv


def _fork_twice() -> bool:
    """Fork a grandchild. Returns True there once it is the agent's child, its parent collected; False here."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        if os.fork():
            os._exit(0)
        os.read(ready, 1)
        os.close(ready)
        return True
    os.close(ready)
    os.waitpid(child, 0)
    os.close(go)
    return False


@contextlib.contextmanager
def _ending_with(link: socket.socket) -> Iterator[None]:
    """Hold a handler that ends this process when the agent goes while nothing reads the link.

    The kernel signals the hang-up.
    """

    def on_io(_number: int, _frame: object) -> None:
        poller = select.poll()
        poller.register(link, 0)
        if poller.poll(0):
            os._exit(0)

    flags = fcntl.fcntl(link, fcntl.F_GETFL)
    before = signal.signal(signal.SIGIO, on_io)
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        on_io(signal.SIGIO, None)  # the agent may have gone already
        yield
    finally:
        fcntl.fcntl(link, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, before)


def _read_sources() -> None:
    """Read the script's source, and those that `torch.manual_seed` quotes, into `linecache`. Pipes stay unread."""
    modules = [sys.modules[name] for name in _QUOTED_MODULES if name in sys.modules]
    files = [file for module in modules if (file := module.__file__) is not None]
    for file in filter(os.path.isfile, (*files, *sys.argv[:1])):
        linecache.getlines(file)


def _exercise() -> None:
    try:
        from taskd.adaptors.torchrun.exercise import run_step

        run_step()
    except Exception as error:  # noqa: BLE001  a torch of another kind
        logger.info("a warm process cannot run a step ahead: %r", error)


def _prepare_checks() -> None:
    """Import the self-check, and let it scan the present modules: it remembers which are libraries'."""
    import_quietly(CHECKING_MODULES)
    from taskd.adaptors.groups.sites import users_files

    users_files()


def _load_core() -> None:
    from taskd.errors import ShimError

    try:
        from taskd.runtime.box.blackbox import load_core

        load_core()
    except (ImportError, ShimError) as error:
        logger.info("standbys have no black box: %s", error)  # the agent warns of it, once for all


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _children_can_use_devices() -> bool:
    """Return whether a forked child can use the devices: an import that touched one makes it unusable after a fork.

    Only a fork shows it.
    """
    child = os.fork()
    if child == 0:
        spoilt = any(_is_in_bad_fork(name) for name in _ACCELERATORS)
        os._exit(1 if spoilt else 0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def _is_in_bad_fork(name: str) -> bool:
    check = getattr(sys.modules.get(name), "_is_in_bad_fork", None)
    return bool(check()) if check is not None else False


def _redirect(path: bytes | None, descriptor: int) -> None:
    if path is None:
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    os.dup2(file, descriptor)
    os.close(file)
    name = _STREAMS[descriptor]
    if getattr(sys, name) is None:  # torchrun was started with this descriptor closed
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(raw, errors="backslashreplace" if name == "stderr" else None, write_through=True)
        vars(sys).update({name: stream, f"__{name}__": stream})


def _forget_warnings() -> None:
    """Show the warnings of imports to the script again: a change of filters outdates every registry."""
    with warnings.catch_warnings():
        pass


def _reseed() -> None:
    """Draw the global random states from the system, as a fresh process does: forks of one template must differ."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
