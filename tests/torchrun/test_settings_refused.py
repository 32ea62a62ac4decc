"""A wrong setting ends torchrun with status 2 before a rank starts. A wrong value from MASTER_ADDR alone does not."""

import re
import socket

import pytest

from taskd.config.preflight import check_settings
from taskd.config.schema import Format, Reader, Setting
from taskd.config.settings import SETTINGS
from taskd.errors import ConfigError, SecretError
from tests.torchrun.conftest import Play
from tests.torchrun.twins import Launch, launch

WRONG: dict[Format, str] = {
    Format.WHOLE: "three",
    Format.SECONDS: "soon",
    Format.FACTOR: "nan",
    Format.SWITCH: "yes",
    Format.INEXACT: "perhaps",
    Format.SELF_CHECK: "on",
    Format.MODULES: "no module",
    Format.STRATEGIES: "hope",
    Format.PATH: "not/absolute",
    Format.ADDRESS: "nowhere",
}
JUDGED = [one for one in SETTINGS if one.variable and one.format in WRONG and Reader.WORKER not in one.readers]
ELSEWHERE = "192.0.2.1:9601"


@pytest.mark.parametrize("setting", JUDGED, ids=lambda one: one.variable)
def test_each_setting_is_looked_at(setting: Setting) -> None:
    with pytest.raises(ConfigError, match=f"^{setting.variable}: found '?{WRONG[setting.format]}.*; ") as caught:
        check_settings({setting.variable or "": WRONG[setting.format]}, None, 1)
    assert "expected" in str(caught.value)


def test_right_ones_are_taken() -> None:
    check_settings({}, None, 1)
    check_settings({one.variable or "": one.default for one in JUDGED if one.default}, None, 1)
    check_settings({"TASKD_MANAGER": ELSEWHERE, "TASKD_SECRET": "0123456789abcdef" * 4}, None, 2)
    check_settings({"TASKD_MANAGER": ELSEWHERE, "TASKD_INSECURE": "on"}, None, 2)
    check_settings({"TASKD_INCARNATION": "an outer job's"}, None, 1)


@pytest.mark.parametrize("name", [{}, {"MASTER_ADDR": "192.0.2.1"}, {"MASTER_ADDR": "no host!"}])
def test_where_nobody_has_named_a_manager_there_is_nothing_to_refuse(name: dict[str, str]) -> None:
    check_settings(name, None, 2)
    with pytest.raises(ConfigError, match="TASKD_MANAGER_PORT"):
        check_settings({**name, "TASKD_MANAGER_PORT": "0", "MASTER_ADDR": "127.0.0.1"}, None, 2)


@pytest.mark.parametrize(
    ("env", "nodes"),
    [
        ({"TASKD_MANAGER": ELSEWHERE}, 2),
        ({"TASKD_MANAGER": ELSEWHERE}, 1),
        ({"TASKD_MANAGER": "embedded"}, 2),
        ({"TASKD_HEARTBEAT_S": "10", "TASKD_NODE_TIMEOUT_S": "20"}, 1),
    ],
)
def test_settings_that_do_not_go_together(env: dict[str, str], nodes: int) -> None:
    with pytest.raises((ConfigError, SecretError)):
        check_settings(env, None, nodes)


@pytest.mark.parametrize(
    "env",
    [{"TASKD_NODE_TIMEOUT_S": "soon"}, {"TASKD_STANDBY": "many"}, {"TASKD_MANAGER": ELSEWHERE}],
    ids=["manager's", "agent's", "no secret"],
)
def test_torchrun_ends_before_a_rank_starts(play: Play, env: dict[str, str]) -> None:
    pair = play(launch("{observer}", ranks=1, **env))
    assert pair.stock.statuses == [0], pair.stock.text
    assert pair.taskd.statuses == [2], pair.taskd.text
    assert not pair.taskd.ranks
    lines = pair.taskd.text.splitlines()
    assert len(lines) == 2, pair.taskd.text
    assert lines[0].startswith(f"stderr: error: {'asked to connect' if ELSEWHERE in env.values() else next(iter(env))}")
    assert lines[1].startswith("stderr: hint: ")


def test_a_manager_that_was_only_guessed_needs_no_secret(play: Play) -> None:
    """Two nodes meet at an address that others reach too: one line each, and stock torchrun.

    torch complains of a lost store if the node that has it leaves first, which happens by chance.
    """
    host = own_address()
    words = ("--nnodes=2", "--nproc-per-node=1", f"--master-addr={host}", "--master-port={port}", "{observer}")
    nodes = tuple((f"PET_NODE_RANK={rank}", *words) for rank in range(2))
    pair = play(Launch(nodes, ranks=2))
    pair.check_ranks()
    assert pair.stock.statuses == [0, 0]
    own = [line for line in pair.taskd.text.splitlines() if "taskd" in line and "/taskd/" not in line]
    assert len(own) == 2, pair.taskd.text
    for line in own:
        assert re.search("taskd cannot take part: asked to connect to .* without a secret.*torchrun goes on", line)


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE.partition(":")[0], 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this machine has no network: {error}")
        return str(probe.getsockname()[0])
