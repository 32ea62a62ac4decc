"""torch's own tests of torchrun, with taskd and without: `python -m tests.torchrun.torch_tests CHECKOUT [TEST …]`.

Rules:

1. The tests run as they are, each file in a process of its own; only TASKD_PROCESS_ENABLE differs.
2. A test that also fails without taskd is no evidence about taskd: it is counted, but is no difference.
3. The last line is JSON; the exit status is 0 if nothing differs.
4. Most tests of the agent need an etcd (TORCHELASTIC_ETCD_BINARY_PATH) and python-etcd; without them they fail in both.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

FILES = (
    "test/distributed/launcher/test_run.py",
    "test/distributed/launcher/api_test.py",
    "test/distributed/launcher/test_api.py",
    "test/distributed/elastic/agent/server/test/api_test.py",
    "test/distributed/elastic/agent/server/test/local_elastic_agent_test.py",
)
LIMIT_S = 1800
Results = dict[str, str]


def play(checkout: Path, files: Sequence[str], switch: str) -> Results:
    """Return each test's result: passed, failed or skipped. A file that cannot be run counts as one failed test."""
    results: Results = {}
    for file in files:
        with tempfile.TemporaryDirectory(prefix="taskd-") as folder:
            report = Path(folder) / "report.xml"
            env = {**os.environ, "TASKD_PROCESS_ENABLE": switch, "TASKD_RUN_DIR": f"{folder}/run"}
            arguments = ["-q", "-p", "no:cacheprovider", f"--rootdir={checkout}", f"--junitxml={report}", file]
            command = [sys.executable, "-m", "pytest", *arguments]
            subprocess.run(command, cwd=checkout, env=env, timeout=LIMIT_S, check=False)
            found = read(report) if report.exists() else {}
            results |= {f"{file}::{name}": ending for name, ending in found.items()} or {file: "failed"}
    return results


def read(report: Path) -> Results:
    """Return the tests of one JUnit report."""
    words = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return {
        f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": next(
            (words[part.tag] for part in case if part.tag in words), "passed"
        )
        for case in ElementTree.parse(report).iter("testcase")
    }


def main(arguments: Sequence[str]) -> int:
    checkout, *files = arguments
    files = files or [file for file in FILES if (Path(checkout) / file).is_file()]
    if not files:
        import torch

        version = torch.__version__.partition("+")[0]
        print(
            f"{checkout}: found no {FILES[0]}, expected a checkout of pytorch {version}:\n"
            f"  git clone --depth 1 --filter=blob:none --sparse -b v{version} https://github.com/pytorch/pytorch\n"
            "  git -C pytorch sparse-checkout set test/distributed",
            file=sys.stderr,
        )
        return 2
    stock, taskd = (play(Path(checkout), files, switch) for switch in ("off", "on"))
    differ = sorted(name for name in stock.keys() | taskd.keys() if stock.get(name) != taskd.get(name))
    for name in differ:
        print(f"{name}: {stock.get(name)} without taskd, {taskd.get(name)} with it")
    print(json.dumps({"stock": Counter(stock.values()), "taskd": Counter(taskd.values()), "differ": differ}))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
