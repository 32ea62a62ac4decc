"""The start script and its companions keep the lines that users of the seed know, and their effects."""

import os
import signal
import stat
from pathlib import Path

import pytest

from tests.launch import Launcher

EXAMPLES = Path(__file__).parents[2] / "examples"

SEED = {
    "Dockerfile": [
        "pip3 install $TASKD_WHL",
        (
            "RUN sed -i '/import os/i import taskd.python.adaptor.patch' $(pip3 show torch | grep Location | "
            "awk -F ' ' '{print $2}')/torch/distributed/run.py"
        ),
    ],
    "manager.py": [
        "from taskd.api import init_taskd_manager, start_taskd_manager",
        "import os",
        'job_id=os.getenv("MINDX_TASK_ID")',
        "node_nums=",
        "proc_per_node=",
        'init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})',
        "start_taskd_manager()",
    ],
    "train_start.sh": [
        (
            "TASKD_SO_PATH=\"$(pip show taskd | awk '/^Location: / "
            '{print $2"/taskd/python/cython_api/libs/libtaskd.so"}\')"'
        ),
        "export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD",
        'export TASKD_PROCESS_ENABLE="on"',
        "# PyTorch",
        'if [[ "${RANK}" == 0 ]]; then',
        "export MASTER_ADDR=${POD_IP}",
        "python manager.py & # Determined by the current path.",
        "fi",
        (
            'DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK '
            '--master_addr $MASTER_ADDR --master_port $MASTER_PORT --max_restarts 32767"'
        ),
    ],
    "job.yaml": [
        'fault-scheduling: "grace"',
        'recover-strategy: "recover-in-place"',
        "- name: ascend # do not modify",
        "bash scripts/train_start.sh /job/code /job/output",
        "- containerPort: 9601",
        "name: taskd-port",
    ],
}

PIP = '#!/bin/bash\n[[ $* == "show taskd" ]] && printf "Name: taskd\\nLocation: /site\\n"\n'
PYTHON = '#!/bin/bash\necho "$PWD: python $* at $MASTER_ADDR" >"$SEEN/manager"\n'
TORCHRUN = (
    '#!/bin/bash\necho "$PWD: torchrun $*" >"$SEEN/torchrun"\n'
    'echo "$TASKD_PROCESS_ENABLE $LD_PRELOAD" >"$SEEN/environment"\n'
    "echo training\n"
)


@pytest.mark.parametrize("name", SEED)
def test_the_seeds_lines_stand_unchanged_and_in_order(name: str) -> None:
    rest = (EXAMPLES / name).read_text()
    for line in SEED[name]:
        _, found, rest = rest.partition(line)
        assert found, f"not in {name}, or not in its place: {line}"


class Pod:
    """A directory with the code, and stand-ins on PATH for the commands of an image. Each records its arguments."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.launcher = launcher
        self.code = folder / "code"
        self.output = folder / "output"
        self.seen = folder / "seen"
        self.bin = folder / "bin"
        for path in (self.code, self.seen, self.bin):
            path.mkdir()
        self.command("pip", PIP)
        self.command("python", PYTHON)
        self.command("torchrun", TORCHRUN)

    def command(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def environment(self, **variables: str) -> dict[str, str | None]:
        unset = dict.fromkeys(
            ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "POD_IP", "GPUS_PER_NODE", "LD_PRELOAD"]
        )
        return {**unset, "PATH": f"{self.bin}:{os.environ['PATH']}", "SEEN": str(self.seen), **variables}

    def arguments(self) -> list[str | Path]:
        return ["bash", EXAMPLES / "train_start.sh", self.code, self.output, "train.py", "--name", "a b"]

    def start(self, **variables: str) -> int:
        status, _ = self.launcher.run(self.arguments(), env=self.environment(**variables))
        return status

    def saw(self, name: str) -> str:
        return (self.seen / name).read_text()


@pytest.fixture
def pod(launcher: Launcher, tmp_path: Path) -> Pod:
    return Pod(launcher, tmp_path)


def test_a_single_machine_needs_no_variables(pod: Pod) -> None:
    assert pod.start() == 0
    assert pod.saw("manager") == f"{pod.code}: python manager.py at 127.0.0.1\n"
    assert pod.saw("torchrun") == (
        f"{pod.code}: torchrun --nproc_per_node 4 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 "
        "--master_port 29500 --max_restarts 32767 train.py --name a b\n"
    )
    assert pod.saw("environment") == "on /site/taskd/python/cython_api/libs/libtaskd.so:\n"
    assert "training\n" in (pod.output / "node_0.log").read_text()


def test_the_first_pod_starts_the_manager_at_its_own_address(pod: Pod) -> None:
    assert pod.start(RANK="0", WORLD_SIZE="2", MASTER_ADDR="master", POD_IP="10.0.0.7", MASTER_PORT="23456") == 0
    assert pod.saw("manager").endswith("at 10.0.0.7\n")
    assert "--nnodes 2 --node_rank 0 --master_addr 10.0.0.7 --master_port 23456 " in pod.saw("torchrun")


def test_another_pod_starts_no_manager(pod: Pod) -> None:
    assert pod.start(RANK="1", WORLD_SIZE="2", MASTER_ADDR="10.0.0.7", POD_IP="10.0.0.8") == 0
    assert not (pod.seen / "manager").exists()
    assert "--nnodes 2 --node_rank 1 --master_addr 10.0.0.7 " in pod.saw("torchrun")


def test_the_exit_status_is_that_of_torchrun(pod: Pod) -> None:
    pod.command("torchrun", "#!/bin/bash\nexit 17\n")
    assert pod.start() == 17


def test_sigterm_reaches_torchrun_and_its_status_comes_back(pod: Pod) -> None:
    ready = pod.seen / "ready"
    os.mkfifo(ready)
    pod.command("torchrun", '#!/bin/bash\ntrap "exit 23" TERM\necho >"$SEEN/ready"\nsleep 60 & wait\n')
    process = pod.launcher.start(pod.arguments(), env=pod.environment())
    assert ready.read_text() == "\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 23


def test_missing_arguments_are_told(launcher: Launcher) -> None:
    status, output = launcher.run(["bash", EXAMPLES / "train_start.sh", "code"])
    assert status == 2
    assert output.startswith("usage: ")
