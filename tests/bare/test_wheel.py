"""The wheel as a user builds it: its libraries keep the promise of its name."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.shim.sources import build_libs, objects

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("csrc", "taskd", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


@pytest.mark.slow
def test_the_wheel_is_named_for_the_glibc_that_its_libraries_need(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name)
        else:
            shutil.copy(ROOT / name, source / name)
    for built in (source / build_libs.LIBS).glob("*.so"):
        built.unlink()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(out), str(source)], check=True)
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "unpacked")
    libraries = [objects.read(tmp_path / "unpacked" / build_libs.LIBS / name) for name in build_libs.SOURCES]
    assert all(library.newest_glibc() <= objects.OLDEST for library in libraries)
    platform = objects.platform(wheel.stem.split("-", 4)[4].replace("manylinux_2_28", "linux"), libraries)
    assert wheel.name.startswith("taskd-")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    assert platform.startswith("manylinux_2_28_")
