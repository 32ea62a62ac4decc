"""The environment of torchrun and of its processes."""

import logging
from pathlib import Path

import pytest

from taskd.config import settings
from taskd.config.address import Address, manager_address, parse_address
from taskd.config.agent import AgentConfig, warn_of_unknown_variables
from taskd.config.switch import is_enabled
from taskd.config.worker import TemplateConfig, WorkerConfig
from taskd.errors import ConfigError


def test_nothing_configured_embeds_the_manager():
    config = AgentConfig.from_environment({})
    assert config.manager is None
    assert (config.standbys, config.preload, config.learn_modules) == (1, (), True)
    assert (config.manager_wait_s, config.job_id) == (30, "default")


@pytest.mark.parametrize(
    ("env", "master_addr", "nodes", "found"),
    [
        ({"MASTER_ADDR": "node[01]"}, None, 1, (None, Address("127.0.0.1", 9601), False)),
        ({}, "10.0.0.1", 1, (None, Address("127.0.0.1", 9601), False)),
        ({"MASTER_ADDR": "a", "TASKD_MANAGER": "embedded"}, None, 1, (None, None, False)),
        ({"MASTER_ADDR": "a", "TASKD_MANAGER": "b:7"}, None, 1, (Address("b", 7), None, False)),
        ({"MASTER_ADDR": "a"}, None, 2, (Address("a", 9601), None, True)),
    ],
)
def test_master_addr_alone_is_no_promise_of_a_manager(env, master_addr, nodes, found):
    config = AgentConfig.from_environment(env, master_addr=master_addr, node_count=nodes)
    assert (config.manager, config.nearby, config.presumes_manager) == found


def test_every_variable_reaches_its_place(caplog):
    env = {
        "TASKD_PROCESS_ENABLE": "on",
        "TASKD_JOB_ID": "j",
        "TASKD_MANAGER": "[fd00::1]:9700",
        "TASKD_SECRET": "0123456789abcdef0123456789abcdef",
        "TASKD_INSECURE": "off",
        "TASKD_RUN_DIR": "/run/t",
        "TASKD_STANDBY": "2",
        "TASKD_PRELOAD": "numpy, torch.nn,numpy,",
        "TASKD_LEARN_MODULES": "off",
        "TASKD_HEARTBEAT_S": "0.25",
        "TASKD_MANAGER_WAIT_S": "5",
        "TASKD_CHECKPOINT_DIR": "/dumps",
        "TASKD_NCCL_TIMES": "on",
    }
    config = AgentConfig.from_environment(env)
    assert (config.job_id, config.manager, config.run_dir) == ("j", Address("fd00::1", 9700), Path("/run/t"))
    assert config.security.secret == b"0123456789abcdef0123456789abcdef"
    assert (config.standbys, config.preload, config.learn_modules) == (2, ("numpy", "torch.nn"), False)
    assert (config.heartbeat_s, config.manager_wait_s) == (0.25, 5)
    assert config.checkpoint_dir == Path("/dumps")
    assert config.nccl_times
    assert not caplog.records


@pytest.mark.parametrize(
    ("env", "master_addr", "nodes", "found"),
    [
        ({}, None, 1, None),
        ({"TASKD_MANAGER": "m:1"}, "10.0.0.1", 1, "m:1"),
        ({"TASKD_MANAGER": "m:1"}, "10.0.0.1", 4, "m:1"),
        ({"TASKD_MANAGER": "embedded", "MASTER_ADDR": "10.0.0.1"}, None, 1, None),
        ({"MASTER_ADDR": "10.0.0.1"}, None, 1, "127.0.0.1:9601"),
        ({"MASTER_ADDR": "10.0.0.1"}, "10.0.0.2", 2, "10.0.0.1:9601"),
        ({}, "pod-0.svc", 2, "pod-0.svc:9601"),
        ({"MASTER_ADDR": "fd00::1", "TASKD_MANAGER_PORT": "99"}, None, 2, "[fd00::1]:99"),
        ({"MASTER_ADDR": "[fd00::1]"}, None, 2, "[fd00::1]:9601"),
    ],
)
def test_where_the_manager_is(env, master_addr, nodes, found):
    address = manager_address(env, master_addr, nodes)
    assert (None if address is None else str(address)) == found


@pytest.mark.parametrize(
    ("env", "nodes", "words"),
    [
        ({}, 2, "found nothing, expected host:port, because 2 nodes share one manager; set TASKD_MANAGER"),
        ({"TASKD_MANAGER": "embedded", "MASTER_ADDR": "a"}, 2, "found embedded, expected host:port"),
        ({"TASKD_MANAGER": "host"}, 1, "TASKD_MANAGER: found 'host', expected host:port"),
        ({"MASTER_ADDR": "a/b"}, 2, "MASTER_ADDR .*found 'a/b', expected a host name"),
        ({"MASTER_ADDR": "a", "TASKD_MANAGER_PORT": "0"}, 2, "expected a port from 1 to 65535"),
    ],
)
def test_an_address_that_cannot_be_has_its_remedy(env, nodes, words):
    with pytest.raises(ConfigError, match=words):
        manager_address(env, None, nodes)


@pytest.mark.parametrize(
    "text", ["", ":1", "h:", "h:0", "h:65536", "h:-1", "h:1x", "::1:5", "[h]:5", "[::1]5", "h h:1", "h:²"]
)
def test_what_is_no_address(text):
    assert parse_address(text) is None


@pytest.mark.parametrize(("host", "loopback"), [("localhost", True), ("127.9.9.9", True), ("::1", True), ("*", False)])
def test_loopback(host, loopback):
    assert Address(host, 1).is_loopback is loopback


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"TASKD_STANDBY": "-1"}, "TASKD_STANDBY: found -1, expected a whole number from 0 to 64; leave it out for 1"),
        ({"TASKD_STANDBY": "many"}, "found 'many'"),
        ({"TASKD_PRELOAD": "numpy;torch"}, "TASKD_PRELOAD: found 'numpy;torch', expected names of modules"),
        ({"TASKD_LEARN_MODULES": "true"}, "found 'true', expected on or off"),
        ({"TASKD_MANAGER_WAIT_S": "inf"}, "found 'inf', expected a number of seconds"),
        ({"TASKD_CHECKPOINT_DIR": "dumps"}, "TASKD_CHECKPOINT_DIR: found 'dumps', expected an absolute path"),
        ({"TASKD_RUN_DIR": "run"}, "found 'run', expected an absolute path"),
    ],
)
def test_each_mistake_is_named(env, words):
    with pytest.raises(ConfigError, match=words):
        AgentConfig.from_environment(env)


def test_an_empty_variable_is_an_unset_one():
    assert AgentConfig.from_environment({"TASKD_STANDBY": "", "TASKD_MANAGER": ""}) == AgentConfig.from_environment({})


def test_unknown_variables_leave_one_warning(caplog):
    warn_of_unknown_variables(
        {"TASKD_STANDBYS": "1", "TASKD_XYZZY_PLUGH": "", "TASKD_SO_PATH": "", "PATH": "", "TASKD_SECRET": ""}
    )
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "TASKD_STANDBYS (did you mean TASKD_STANDBY?), TASKD_XYZZY_PLUGH; `taskd doctor`" in caplog.text
    assert "TASKD_SO_PATH" not in caplog.text


@pytest.mark.parametrize(("value", "on"), [("on", True), ("off", False), ("", False), ("ON", False), ("1", False)])
def test_only_the_word_on_switches_on(value, on, caplog):
    assert is_enabled({"TASKD_PROCESS_ENABLE": value}) is on
    assert bool(caplog.records) is (value in ("ON", "1"))


def test_unset_is_off():
    assert not is_enabled({})


@pytest.mark.parametrize("optional", [None, Path("/dev/shm/taskd-box")])
def test_a_worker_reads_what_its_agent_wrote(optional):
    written = WorkerConfig(
        agent_socket=Path("/run/t/agent.sock"),
        agent_pid=77,
        run_dir=Path("/run/t"),
        rank=3,
        incarnation=2,
        generation=9,
        joins=True,
        blackbox=optional,
        position=optional,
        setup=optional,
        marks=optional,
        copies=() if optional is None else (optional, Path("/proc/77/fd/9")),
        checkpoint_dir=optional,
    )
    assert WorkerConfig.from_environment(written.environment() | {"RANK": "3"}) == written


def test_a_worker_inherits_the_directory_of_its_checkpoints():
    written = WorkerConfig(Path("/run/t/agent.sock"), 77, Path("/run/t"), 3, 2, 9)
    inherited = {"TASKD_CHECKPOINT_DIR": "/dumps", "RANK": "3"}
    config = WorkerConfig.from_environment(inherited | written.environment())
    assert config is not None
    assert config.checkpoint_dir == Path("/dumps")


@pytest.mark.parametrize(("said", "allows"), [({}, False), ({"TASKD_INEXACT": "allow"}, True)])
def test_a_worker_inherits_whether_it_may_be_inexact(said, allows):
    written = WorkerConfig(Path("/run/t/agent.sock"), 77, Path("/run/t"), 3, 2, 9)
    config = WorkerConfig.from_environment({"RANK": "3"} | said | written.environment())
    assert config is not None
    assert config.allows_inexact is allows


def test_a_process_without_an_agent_is_no_worker():
    assert WorkerConfig.from_environment({"RANK": "0"}) is None


def test_a_worker_with_half_an_environment_is_refused():
    with pytest.raises(ConfigError, match="TASKD_AGENT_PID is missing"):
        WorkerConfig.from_environment({"TASKD_AGENT_SOCKET": "/s", "RANK": "0"})


def test_a_template_reads_what_its_agent_wrote():
    written = TemplateConfig(Path("/run/t/agent.sock"), 77, ("numpy", "torch.nn"))
    assert TemplateConfig.from_environment(written.environment()) == written
    assert TemplateConfig.from_environment({**written.environment(), "TASKD_STANDBY_SHARED": "on"}).shared
    assert not TemplateConfig.from_environment({**written.environment(), "TASKD_SELF_CHECK": "off"}).checks
    with pytest.raises(ConfigError, match="TASKD_AGENT_SOCKET is missing"):
        TemplateConfig.from_environment({})


def test_names_in_the_table_are_unique_and_ours():
    variables = [setting.variable for setting in settings.SETTINGS if setting.variable]
    keys = settings.manager_keys()
    assert len(set(variables)) == len(variables)
    assert len(set(keys)) == len(keys)
    assert {name for name in variables if not name.startswith(settings.PREFIX)} == {"RANK", "LOCAL_WORLD_SIZE"}
