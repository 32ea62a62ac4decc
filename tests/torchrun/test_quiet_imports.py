"""Imports in a template, also where its descriptors are closed."""

import subprocess
import sys

import pytest

SAYS = """
import logging, os, sys
from taskd.runtime.system.descriptors import fill_standard_descriptors
fill_standard_descriptors()
logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(message)s")
from taskd.adaptors.torchrun.quiet_imports import import_quietly
import_quietly(["this", "taskd_has_no_such_module", "_nor_this"])
print([os.readlink(f"/proc/self/fd/{number}") == os.devnull for number in range(3)], file=open(sys.argv[1], "a"))
os.system(f"test -e /proc/self/fd/1 || echo closed >>{sys.argv[1]}")
"""


@pytest.mark.parametrize("closed", ["", "1>&-", "2>&-", "1>&- 2>&-", "0>&- 1>&- 2>&-"])
def test_what_modules_print_goes_to_the_log(closed: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("quiet") / "log"
    words = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-c", SAYS, str(log)]
    ran = subprocess.run(words, stdin=subprocess.PIPE, capture_output=True, text=True, check=True)
    told = log.read_text()
    assert ran.stdout == ran.stderr == ""
    assert "a warm process cannot import taskd_has_no_such_module" in told
    assert ("importing this printed: The Zen of Python" in told) == ("1>" not in closed), "Python prints nothing then"
    assert f"[{'0>' in closed}, {'1>' in closed}, {'2>' in closed}]" in told
    assert ("closed" in told) == ("1>" in closed), "what it starts has what stock torchrun gives it"
