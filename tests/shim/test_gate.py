"""The gate: harmless in everything that is not a worker, and in a worker whose box or core is not right."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from taskd.runtime.box.blackbox import Life
from tests.shim.armed import GATE, PROGRAMS, armed, plain, until
from tests.shim.sources import build_libs, objects

PYTHON = [
    "python",
    "-c",
    "import os, signal; signal.signal(15, signal.SIG_DFL); print(sum(range(9)), len(os.listdir('/')))",
]
CRASH = ["python", "-c", "import os; os.kill(os.getpid(), 11)"]
SHOW = ["python", "-c", "import os; print(os.environ.get('LD_PRELOAD'))"]
COMMANDS = {
    "bash": ["bash", "-c", "trap 'echo bye' EXIT; echo hello | tr a-z A-Z; ( exit 3 ); echo $?; exit 4"],
    "gcc": ["bash", "-c", 'echo \'int main(void){return 7;}\' | gcc -x c -o "$OUTPUT" - && "$OUTPUT"; echo $?'],
    "git": ["git", "--version"],
    "node": ["node", "-e", "process.on('SIGUSR2', () => {}); console.log(6 * 7)"],
    "python": PYTHON,
    "crash": CRASH,
}


def spoil(box: Path, kind: str, folder: Path) -> Path:
    """Make a path that is not a box for this process, in one of many ways."""
    path = folder / "spoilt"
    match kind:
        case "absent":
            pass
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(box)
        case "short":
            path.write_bytes(box.read_bytes()[:-1])
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"\xa5" * box.stat().st_size)
        case "version":
            content = bytearray(box.read_bytes())
            content[8] += 1
            path.write_bytes(content)
        case "taken":
            content = bytearray(box.read_bytes())
            content[16:20] = (1).to_bytes(4, sys.byteorder)
            path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_children_behave_as_without_the_gate(name, box, launcher, tmp_path):
    if shutil.which(COMMANDS[name][0]) is None:
        pytest.skip(f"no {name} here")
    output = {"OUTPUT": str(tmp_path / "program")}
    expected = launcher.run(COMMANDS[name], env=plain() | output)
    inert = {"LD_PRELOAD": str(GATE), "TASKD_PROCESS_ENABLE": "on", "TASKD_BLACKBOX": None}
    assert launcher.run(COMMANDS[name], env=plain() | output | inert) == expected
    assert launcher.run(COMMANDS[name], env=armed(box.path) | output) == expected
    for path in (tmp_path / "absent", tmp_path, Path("/proc/version"), Path("/proc/none/box")):
        assert launcher.run(COMMANDS[name], env=armed(path) | output) == expected
    is_worker = COMMANDS[name][0] == "python"
    assert box.read().claims == (1 if is_worker else 0)


@pytest.mark.parametrize("kind", ["absent", "directory", "link", "short", "empty", "garbage", "version", "taken"])
def test_a_python_whose_box_is_not_right_runs_on(kind, box, launcher, tmp_path):
    path = spoil(box.path, kind, tmp_path)
    expected = launcher.run(PYTHON, env=plain())
    assert launcher.run(PYTHON, env=armed(path)) == expected
    assert box.read().claims == 0


@pytest.mark.root
def test_a_box_of_another_user_is_not_written(box, launcher):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(box.path, 1, 1)
    assert launcher.run(PYTHON, env=armed(box.path)) == launcher.run(PYTHON, env=plain())
    assert box.read().claims == 0


@pytest.mark.parametrize(
    "change",
    [{"TASKD_PROCESS_ENABLE": "off"}, {"TASKD_PROCESS_ENABLE": None}, {"TASKD_BLACKBOX": ""}, {"TASKD_BLACKBOX": None}],
    ids=str,
)
def test_it_is_inert_unless_switched_on_with_a_box(change, box, launcher):
    assert launcher.run(SHOW, env=armed(box.path) | change) == (0, f"{GATE}\n")
    assert box.read().claims == 0


def test_only_an_executable_named_python_is_a_worker(box, launcher, tmp_path):
    other = tmp_path / "notpython"
    shutil.copy(Path(sys.executable).resolve(), other)
    prefix = {"PYTHONHOME": sys.base_prefix}
    assert launcher.run([other, *SHOW[1:]], env=armed(box.path) | prefix) == (0, f"{GATE}\n")
    assert box.read().claims == 0


def test_a_worker_takes_its_own_entry_off_the_preload_list(box, launcher, tmp_path):
    other = tmp_path / "libother.so"
    launcher.run(["bash", "-c", f"echo 'int other;' | gcc -shared -fPIC -x c -o {other} -"])
    both = {"LD_PRELOAD": f"{GATE}:{other}"}
    assert launcher.run(SHOW, env=armed(box.path) | both) == (0, f"{other}\n")
    assert box.read().claims == 1


def test_the_last_entry_takes_the_variable_with_it(box, launcher):
    assert launcher.run(SHOW, env=armed(box.path)) == (0, "None\n")


def test_keep_leaves_the_list_alone(box, launcher):
    assert launcher.run(SHOW, env=armed(box.path, TASKD_PRELOAD_KEEP="on")) == (0, f"{GATE}\n")
    assert box.read().claims == 1


def test_the_box_says_who_the_worker_is(box, launcher):
    worker = launcher.start(["python", "-c", "import sys; sys.stdin.read(); import time; time.sleep(60)"],
                            env=armed(box.path, RANK="11", TASKD_INCARNATION="4"))  # fmt: skip
    until(lambda: box.read().life is Life.HELD, "the worker holds its life futex")
    said = box.read()
    assert (said.owner_pid, said.rank, said.incarnation, said.step) == (worker.pid, 11, 4, -1)


CORES = {
    "missing": None,
    "empty": "",
    "of another kind": "int unrelated;",
    "that refuses": "int taskd_attach(const char *p, int r, int i) { (void)p; (void)r; (void)i; return -1; }",
    "that cannot be linked": "int no_such_function(void); int taskd_attach(void) { return no_such_function(); }",
}


def fake_install(folder: Path, source: str | None, launcher) -> Path:
    gate = folder / "libtaskd.so"
    shutil.copy(GATE, gate)
    core = folder / "libtaskd_core.so"
    if source == "":
        core.write_bytes(b"")
    elif source is not None:
        (folder / "core.c").write_text(source)
        built = launcher.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", core, folder / "core.c"])
        assert built == (0, "")
    return gate


@pytest.mark.parametrize("kind", CORES)
def test_a_worker_with_a_core_that_is_not_right_runs_on(kind, box, launcher, tmp_path):
    gate = fake_install(tmp_path, CORES[kind], launcher)
    assert launcher.run(PYTHON, env=armed(box.path, gate)) == launcher.run(PYTHON, env=plain())
    assert launcher.run(SHOW, env=armed(box.path, gate)) == (0, f"{gate}\n")


def test_signal_handlers_go_to_a_core_that_has_a_chain(box, launcher, tmp_path):
    gate = fake_install(tmp_path, (PROGRAMS / "chain.c").read_text(), launcher)
    program = ["python", "-c", "import signal; signal.signal(signal.SIGUSR2, signal.SIG_IGN)"]
    assert launcher.run(program, env=armed(box.path, gate)) == (0, "asked\n")


def build_signals(compiler: str, folder: Path, launcher, *options: str) -> Path:
    program = folder / "signals"
    assert launcher.run([compiler, *options, "-o", program, PROGRAMS / "signals.c"]) == (0, "")
    return program


@pytest.mark.parametrize("way", ["", "-static-pie", "musl"])
def test_any_program_of_an_image_runs_under_it(way, launcher, tmp_path):
    compiler = "musl-gcc" if way == "musl" else "gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    program = build_signals(compiler, tmp_path, launcher, *([way] if way.startswith("-") else []))
    expected = (0, "first\nsecond\nsecond\nended\n")
    assert launcher.run([program], env=plain()) == expected
    assert launcher.run([program], env=plain() | {"LD_PRELOAD": str(GATE)}) == expected


def test_a_libc_without_dlsym_keeps_its_signals(launcher, tmp_path):
    """As with glibc before 2.34 in a program without libdl: the gate's names of libdl are changed to absent ones."""
    gate, part = tmp_path / "libtaskd.so", tmp_path / "gate.o"
    flags = [*build_libs.FLAGS, *build_libs.GATE_FLAGS]
    compile_only = [flag for flag in flags if flag != "-shared" and not flag.startswith("-Wl,")]
    renamed = [f"--redefine-sym={name}=no_{name}" for name in ("dladdr", "dlopen", "dlsym")]
    for command in (
        ["gcc", *compile_only, "-c", "-o", part, build_libs.CSRC / "gate.c"],
        ["objcopy", *renamed, part],
        ["gcc", *flags, "-o", gate, part],
    ):
        assert launcher.run(command) == (0, "")
    assert "no_dlsym" in objects.read(gate).weak
    program = build_signals("gcc", tmp_path, launcher)
    preload = {"LD_PRELOAD": str(gate)}
    assert launcher.run([program], env=plain() | preload) == launcher.run([program], env=plain())
    assert launcher.run(PYTHON, env=armed(tmp_path, gate)) == launcher.run(PYTHON, env=plain())
