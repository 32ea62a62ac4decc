"""The whole core under AddressSanitizer and UndefinedBehaviorSanitizer: both sides in use, then hostile boxes."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.shim.armed import PROGRAMS, plain
from tests.shim.sources import build_libs

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
# The core's own handlers are tested; the sanitizer's would replace them.
OPTIONS = {
    "ASAN_OPTIONS": "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_abort=0:handle_sigill=0:use_sigaltstack=0"
    ":detect_leaks=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("sanitized") / "exercise"
    sources = [PROGRAMS / "exercise.c", *(build_libs.CSRC / name for name in build_libs.SOURCES[build_libs.CORE])]
    warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fexceptions", "-pthread", f"-I{build_libs.CSRC}"]
    done = subprocess.run(
        ["gcc", *SANITIZERS, *warnings, "-o", target, *sources, "-ldl"], capture_output=True, text=True, check=False
    )
    if "cannot find -lasan" in done.stderr or "cannot find -lubsan" in done.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return target


def test_both_sides_are_clean(program, launcher, run_dir):
    assert launcher.run([program, "use", run_dir / "box"], env=plain() | OPTIONS) == (0, "")


@pytest.mark.parametrize("seed", range(2))
def test_hostile_boxes_are_read_without_harm(seed, program, launcher, tmp_path):
    status, output = launcher.run([program, "fuzz", tmp_path / "box", str(seed), "400"], env=plain() | OPTIONS)
    assert status == 0, output
    assert re.fullmatch(r"\d+\n", output)
    assert int(output) > 200


def test_the_sanitizers_bite(launcher, tmp_path):
    source, broken = tmp_path / "broken.c", tmp_path / "broken"
    source.write_text("int main(int n, char **w) { char a[4]; a[n + 3] = 1; return a[n] + !w; }")
    assert launcher.run(["gcc", *SANITIZERS, "-o", broken, source])[0] == 0
    status, output = launcher.run([broken], env=plain() | OPTIONS)
    assert status != 0
    assert "stack-buffer-overflow" in output or "out of bounds" in output
