"""Parts of the build that need code: the C libraries of csrc/, the wheel's tag, and the description for an index."""

import os
import re
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "csrc"))
import build_libs  # noqa: E402
import objects  # noqa: E402


class BuildWithShim(build_py):
    """Build of the Python files and, beside them, the libraries. An editable install builds in the source tree."""

    def run(self) -> None:
        super().run()
        build_libs.build(ROOT if self.editable_mode else Path(self.build_lib))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        built = [build_libs.LIBS / build_libs.GATE, build_libs.LIBS / build_libs.CORE, build_libs.BOX_MODULE]
        known = list(super().get_outputs(include_bytecode))
        return known + [path for path in (str(Path(self.build_lib) / one) for one in built) if path not in known]


class PlatformDistribution(Distribution):
    """Distribution that is not pure, although it has no Python extension."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """Wheel with the tag py3-none-<platform>, for any Python 3.

    The platform is manylinux if the libraries need no newer glibc than torch's wheels.
    """

    def get_tag(self) -> tuple[str, str, str]:
        plain, built = super().get_tag()[2], Path(self.bdist_dir or "") / build_libs.LIBS
        if not built.is_dir():  # before the build: the libraries of the source tree are no part of this wheel
            return ("py3", "none", plain)
        asked = [objects.read(built / name) for name in (build_libs.GATE, build_libs.CORE)]
        return ("py3", "none", objects.platform(plain, asked))


LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def long_description() -> str:
    """Return README.md for a package index, where relative links to source files lead nowhere.

    With PROJECT_SOURCE_URL, below which the files are shown, such links become absolute. Without it only their text
    stays.
    """
    base = os.environ.get("PROJECT_SOURCE_URL", "").rstrip("/")
    link = (lambda found: f"[{found[1]}]({base}/{found[2]})") if base else (lambda found: found[1])
    return LINK.sub(link, (ROOT / "README.md").read_text(encoding="utf-8"))


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithShim, "bdist_wheel": PlatformWheel},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
