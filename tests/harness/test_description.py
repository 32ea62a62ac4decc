"""The package's description in an index, and the installation in pages and messages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.config.process import environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*")]
CODE = (ROOT / "taskd").rglob("*.py")
SOMEBODY_ELSES = re.compile(r"pip3? install (?:-\S+ )*['\"]?taskd\b(?!-)")


@pytest.mark.parametrize("address", ["", "https://example.org/taskd/"])
def test_no_link_of_the_long_description_is_relative(tmp_path: Path, address: str) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path],
        cwd=ROOT,
        env={**environment(), "PROJECT_SOURCE_URL": address},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "taskd.egg-info" / "PKG-INFO").read_text()
    assert "Description-Content-Type: text/markdown" in text
    assert "# taskd" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert all(link.startswith("https://example.org/taskd/") for link in links)
    assert bool(links) == bool(address)
    assert "docs/configuration.md" in text


def test_nobody_is_led_to_the_package_of_that_name_on_the_public_index() -> None:
    led = [str(path) for path in (*PAGES, *CODE) if path.is_file() and SOMEBODY_ELSES.search(path.read_text())]
    assert not led
