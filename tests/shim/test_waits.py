"""An aborted wait never counts as a completed transfer: each order of completion and break, against a fake gloo."""

from tests.shim.armed import CORE, PROGRAMS, REPOSITORY, plain

EXPECTED = """\
completed: true peer=7 left=1 marked=0 listed=0
aborted by the user: false peer=0 left=0 marked=0 listed=0
broken while waiting: thrown listed=0
completed with the kick: true peer=7 left=0 marked=0 listed=0
completed before the kick: true peer=7 left=1 marked=0 listed=0
begun while broken: thrown listed=0
completed while broken: true peer=7 left=0 marked=0 listed=0
"""


def test_every_order_of_completion_and_break(launcher, tmp_path):
    library, program = tmp_path / "libtorch_cpu.so", tmp_path / "waits"
    options = [
        "g++",
        "-std=c++17",
        "-pthread",
        f"-I{REPOSITORY / 'csrc'}",
        f"-Wl,--no-as-needed,-rpath,{tmp_path}:{CORE.parent}",
    ]
    soname = ["-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so"]
    assert launcher.run([*options, *soname, "-o", library, PROGRAMS / "fake_gloo.cc"]) == (0, "")
    # The core comes first, so that the calls of the program are bound to it, as torch's are.
    assert launcher.run([*options, "-o", program, PROGRAMS / "waits.cc", CORE, library]) == (0, "")
    assert launcher.run([program], env=plain()) == (0, EXPECTED + EXPECTED + "hooks=2\n")


def test_two_gloos_in_one_process_keep_to_their_own_code(launcher, tmp_path):
    for peer in (1, 2):
        library = tmp_path / f"libpeer{peer}.so"
        build = ["g++", "-std=c++17", "-shared", "-fPIC", f"-DPEER={peer}", "-o", library, PROGRAMS / "fake_gloo.cc"]
        assert launcher.run(build) == (0, "")
    libraries = [tmp_path / f"libpeer{peer}.so" for peer in (1, 2)]
    assert launcher.run(["python", PROGRAMS / "receives.py", *libraries], env=plain()) == (0, "[1, 1, 2, 2] True\n")


def test_a_wait_that_was_jumped_to_finds_the_gloo_there_is(launcher, tmp_path):
    library = tmp_path / "libjumps.so"
    build = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-o", library, PROGRAMS / "fake_gloo.cc"]
    assert launcher.run(build) == (0, "")
    assert launcher.run(["python", PROGRAMS / "receives.py", "jump", library], env=plain()) == (0, "1 True\n")
