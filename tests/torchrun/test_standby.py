"""Templates and standbys at the edges: no agent, threads, modules that fail, a flood of forks."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskd.adaptors.torchrun.children import AdoptedProcess, require_child
from taskd.adaptors.torchrun.command import START
from taskd.adaptors.torchrun.standby import _read_sources
from taskd.config.process import environment
from taskd.errors import RecoveryError
from taskd.wire.codec import encode
from taskd.wire.messages import Modules
from tests.torchrun.nursery import Nursery, Standby, parent_of
from tests.torchrun.scripted import DEADLINE_S, hear

ROOT = Path(__file__).resolve().parents[2]
TOUCHES = Path(__file__).with_name("programs") / "plugin" / "touches.py"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return the ranks' environment, with a directory for generated modules on the path."""
    return {**environment(), "PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1"}


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_standbys_are_children_of_the_agent_and_members_of_the_templates_group(
    run_dir: Path, env: dict[str, str]
) -> None:
    with Nursery(run_dir, env) as nursery:
        nursery.start_template()
        for standby in nursery.fork(3):
            assert parent_of(standby.hello.pid) == os.getpid()
            assert os.getpgid(standby.hello.pid) == nursery.pid
            require_child(standby.hello.pid)
        with pytest.raises(RecoveryError, match="has the parent"):
            require_child(1)


def own_mb(pid: int) -> float:
    """Return the memory that a process shares with no other, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def ready_mb(*pids: int) -> float:
    """Return the private memory of these standbys when their preparation is over, in MiB."""
    before_mb, now_mb = 0.0, sum(map(own_mb, pids))
    while now_mb != before_mb:  # the timeout of this module bounds it
        time.sleep(0.3)
        before_mb, now_mb = now_mb, sum(map(own_mb, pids))
    return now_mb


def test_standbys_that_share_their_memory_have_little_of_their_own(run_dir: Path, env: dict[str, str]) -> None:
    with Nursery(run_dir, {**env, "TASKD_STANDBY_SHARED": "on"}) as nursery:
        nursery.start_template()
        assert ready_mb(nursery.pid, *(standby.hello.pid for standby in nursery.fork(2))) <= 100


def test_standbys_copy_nothing_before_they_are_to_prepare(run_dir: Path, env: dict[str, str]) -> None:
    with Nursery(run_dir, env) as nursery:
        nursery.start_template()
        (prepared,), (reserve,) = nursery.fork(1), nursery.fork(1, prepare=False)
        while own_mb(prepared.hello.pid) < 100:  # the timeout of this module bounds it
            time.sleep(0.05)
        assert ready_mb(reserve.hello.pid) < 50


def test_a_template_whose_agent_goes_during_its_imports_ends_at_once(run_dir: Path, env: dict[str, str]) -> None:
    with Nursery(run_dir, env) as nursery:
        nursery.launch()
        template = nursery.process.release(nursery.pid)
        assert template is not None
        nursery.template.close()
        assert template.wait(2.0) == 0


def test_idle_standbys_end_with_their_agent(run_dir: Path, env: dict[str, str]) -> None:
    with Nursery(run_dir, env) as nursery:
        nursery.start_template()
        standbys = nursery.fork(2)
        nursery.template.close()
        for standby in standbys:
            standby.link.close()
            assert AdoptedProcess(standby.hello.pid).wait(DEADLINE_S) == 0


def test_a_dead_template_takes_its_idle_standbys_along(run_dir: Path, env: dict[str, str]) -> None:
    with Nursery(run_dir, env) as nursery:
        nursery.start_template()
        (standby,) = nursery.fork(1)
        os.kill(nursery.pid, signal.SIGKILL)
        assert nursery.template.recv(1) == b""
        collected: set[int] = set()
        while standby.hello.pid not in collected:  # the timeout of this module bounds it
            collected.update(nursery.process.reap())
        assert nursery.pid in collected


def test_a_template_with_threads_does_not_fork_but_becomes_a_rank_itself(
    run_dir: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    write_module(
        tmp_path, "threaded", "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    write_module(
        tmp_path, "script", "import os, sys, threaded\nprint(os.getsid(0) == os.getpid(), sys.argv)\nsys.exit(5)"
    )
    with Nursery(run_dir, env, "-m", "script") as nursery:
        ready = nursery.start_template(TASKD_PRELOAD="threaded")
        assert ready.threads == 2
        itself = Standby(nursery.template, ready)
        assert nursery.become(itself, ("-m", "script"), cwd=tmp_path, env=env) == 5
        assert nursery.output(itself)[0].startswith("True ")


def test_an_import_that_touches_a_device_is_noticed(run_dir: Path, tmp_path: Path, env: dict[str, str]) -> None:
    shutil.copy(TOUCHES, tmp_path)
    with Nursery(run_dir, env) as nursery:
        assert nursery.start_template(TASKD_PRELOAD="touches").threads == 2


def test_modules_are_imported_as_far_as_they_can_be(run_dir: Path, tmp_path: Path, env: dict[str, str]) -> None:
    write_module(tmp_path, "good", "print('good says something')")
    write_module(tmp_path, "leaves", "import sys\nsys.exit(1)")
    write_module(
        tmp_path, "script", "import sys\nprint([name in sys.modules for name in ('good', 'leaves', 'absent')])"
    )
    with Nursery(run_dir, env) as nursery:
        nursery.start_template(tmp_path)
        nursery.template.send(encode(Modules(names=("leaves", "absent", "good"))))
        assert hear(nursery.template).threads == 1
        (standby,) = nursery.fork(1)
        assert nursery.become(standby, ("script.py",), cwd=tmp_path, env=env) == 0
        assert nursery.output(standby) == ("[True, False, False]\n", "")


ARGUMENT = "\udcfe\udc80" + "y" * 100_000
SEES = """
import os, sys
print(ascii((os.getcwd(), sys.argv[1:], os.environ["V\\udcff"], len(os.environ["V3499"]))))
"""


def test_a_rank_is_given_the_kernels_bytes(run_dir: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Names are not UTF-8, and there are more variables than fit one datagram."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write_module(tmp_path, "script", SEES)
    many = {**env, "V\udcff": "\udce9", **{f"V{number}": "x" * 100 for number in range(3500)}}
    with Nursery(run_dir, env) as nursery:
        nursery.start_template(tmp_path)
        for standby, cwd in zip(nursery.fork(2), (folder, None), strict=True):  # None: it cannot be named
            assert nursery.become(standby, (str(tmp_path / "script.py"), ARGUMENT), cwd=cwd, env=many) == 0
            out, err = nursery.output(standby)
            assert (ast.literal_eval(out), err) == ((str(cwd or tmp_path), [ARGUMENT], "\udce9", 100), "")


WRITES = """
import sys
from taskd.adaptors.torchrun.standby import _redirect
from taskd.runtime.system.descriptors import fill_standard_descriptors
fill_standard_descriptors()  # as each process of ours does at its start
assert sys.stdout is None
_redirect(sys.argv[1].encode(), 1)
_redirect(sys.argv[2].encode(), 2)
print("out")
print("err \\udcff", file=sys.stderr)
assert sys.stdout is sys.__stdout__
"""


def test_a_rank_with_logs_has_a_stream_that_its_template_had_not(tmp_path: Path, env: dict[str, str]) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    words = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", WRITES, str(out), str(err)]
    subprocess.run(words, env=env, check=True)
    assert (out.read_text(), err.read_text()) == ("out\n", "err \\udcff\n")


def test_a_new_template_replaces_the_old_one_and_its_standbys(run_dir: Path, env: dict[str, str]) -> None:
    with Nursery(run_dir, env) as nursery:
        nursery.start_template()
        (old,) = nursery.fork(1, prepare=False)
        before = nursery.pid
        nursery.launch()
        assert nursery.pid != before
        assert old.link.recv(1) == b""


@pytest.mark.timeout(20)
def test_a_script_in_a_pipe_is_left_to_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "script")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "script")])
    _read_sources()


SIGNALS = """
import os, signal
child = os.spawnvp(os.P_NOWAIT, "true", ["true"])
try:
    os.waitpid(child, 0)
except ChildProcessError:
    print("forgotten", end=" ")
print(signal.getsignal(signal.SIGCHLD).name, "TASKD_SIGCHLD_IGNORED" in os.environ)
"""


def test_where_sigchld_was_ignored_a_rank_ignores_it_and_its_template_does_not(
    run_dir: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    write_module(tmp_path, "script", SIGNALS)
    ignored = {**env, "TASKD_SIGCHLD_IGNORED": "1"}
    with Nursery(run_dir, ignored) as nursery:
        nursery.start_template(tmp_path)
        (standby,) = nursery.fork(1)
        assert nursery.become(standby, ("script.py",), cwd=tmp_path, env=ignored) == 0
        assert nursery.output(standby) == ("forgotten SIG_IGN False\n", "")


def test_where_sigchld_was_ignored_a_cold_rank_ignores_it(tmp_path: Path, env: dict[str, str]) -> None:
    write_module(tmp_path, "script", SIGNALS)
    ignored = {**env, "TASKD_SIGCHLD_IGNORED": "1", "PYTHONPATH": f"{START}:{ROOT}"}
    ran = subprocess.run(
        [sys.executable, tmp_path / "script.py"], env=ignored, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("forgotten SIG_IGN False\n", "")


KEEPS = """
import signal, subprocess, threading
from taskd.runtime.system.sigchld import stop_ignoring_sigchld
told = []
beside = threading.Thread(target=lambda: told.append(stop_ignoring_sigchld()))
beside.start()
beside.join()
told.append(subprocess.call(["false"]))
told += [stop_ignoring_sigchld(), stop_ignoring_sigchld()]
told.append(subprocess.call(["false"]))
print(told)
"""


def test_the_agent_learns_how_its_children_end(env: dict[str, str]) -> None:
    words = ["env", "--ignore-signal=CHLD", sys.executable, "-c", KEEPS]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("[False, 0, True, False, 1]\n", "")


STEPS_BACK = """
import sys
if any("torch.distributed.run" in word for word in sys.orig_argv):
    from taskd.runtime.agent.agent import NodeAgent
    def broken(*_, **__):
        raise OSError("broken by the test")
    NodeAgent.__init__ = broken
"""


def test_where_taskd_steps_back_ranks_ignore_sigchld_as_without_it(tmp_path: Path, env: dict[str, str]) -> None:
    write_module(tmp_path, "sitecustomize", STEPS_BACK)
    write_module(tmp_path, "script", SIGNALS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(tmp_path / "script.py")]
    on = {**env, "TASKD_PROCESS_ENABLE": "on"}
    ran = subprocess.run(["env", "--ignore-signal=CHLD", *torchrun], env=on, capture_output=True, text=True, check=True)
    assert ran.stdout == "forgotten SIG_IGN False\n"
    assert "broken by the test" in ran.stderr
