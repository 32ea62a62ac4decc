"""The dict of `init_taskd_manager`: its accepted values, and an error with a remedy for every mistake."""

import pytest

from taskd.config.address import Address
from taskd.config.manager import ManagerConfig
from taskd.config.rundir import job_dir
from taskd.core.policy import BudgetPolicy, Deadlines, Membership, Policy, Strategy, StrategyPolicy
from taskd.errors import ConfigError

SEED = {"job_id": "job-1", "node_nums": 2, "proc_per_node": 8}
SECRET = "0123456789abcdef" * 2


def read(env=None, **keys) -> ManagerConfig:
    return ManagerConfig.from_mapping(SEED | keys, env or {})


def test_the_seeds_three_keys_are_enough():
    config = read()
    assert config.policy == Policy("job-1", 2, 8, strategies=StrategyPolicy(sized_wait_s=30.0))
    assert config.policy.world_size == 16
    assert config.listen == Address("127.0.0.1", 9601)
    assert config.security.secret is None


def test_defaults_are_those_of_the_core():
    assert read().policy.deadlines == Deadlines()
    assert read().policy.membership == Membership()


def test_every_setting_reaches_its_place():
    config = read(
        host="::1",
        port="9700",
        secret=SECRET,
        insecure=True,
        recover_strategy="exit, recover-in-place",
        max_restarts=5,
        restart_window="3600",
        wait_reschedule_timeout=90,
        node_command=" sbatch --wait node.sh ",
        checkpoint_dir="/shared/dumps",
        heartbeat_s=1,
        node_timeout_s="20",
        confirm_s=0.5,
        merge_window_s=0,
        pause_timeout_s=2,
        replace_timeout_s=3.5,
        join_timeout_s=4,
        resume_timeout_s=5,
        slow_recovery="on",
        pipeline_stages=4,
        run_dir="/run/taskd",
    )
    assert config.listen == Address("::1", 9700)
    assert (config.security.secret, config.security.insecure) == (SECRET.encode(), True)
    assert config.policy.strategies.allowed == (Strategy.RECOVER_IN_PLACE, Strategy.EXIT)
    assert config.policy.budget == BudgetPolicy(max_restarts=5, window_s=3600)
    assert (config.node_command, str(config.checkpoint_dir)) == ("sbatch --wait node.sh", "/shared/dumps")
    assert config.policy.strategies.dump_to
    heartbeats = Membership().suspect_s / Membership().heartbeat_s
    assert config.policy.membership == Membership(heartbeat_s=1, suspect_s=heartbeats, dead_s=20)
    expected = Deadlines(confirm_s=0.5, merge_s=0, pause_s=2, replace_s=3.5, join_s=4, resume_s=5, wait_node_s=90)
    assert config.policy.deadlines == expected
    assert (config.policy.recover_slow, config.policy.pipeline_stages) == (True, 4)
    assert str(config.run_dir) == "/run/taskd"


def test_a_secret_opens_all_interfaces():
    assert read({"TASKD_SECRET": SECRET}).listen == Address("*", 9601)
    assert read({"TASKD_SECRET": SECRET, "TASKD_MANAGER_HOST": "10.0.0.1"}).listen == Address("10.0.0.1", 9601)


def test_a_key_wins_over_its_variable():
    env = {"TASKD_MANAGER_PORT": "1", "TASKD_MAX_RESTARTS": "2", "TASKD_RECOVER_STRATEGY": "exit"}
    config = read(env, port=3)
    assert (config.listen.port, config.policy.budget.max_restarts) == (3, 2)
    assert config.policy.strategies.allowed == (Strategy.EXIT,)


def test_the_ladders_variables_reach_their_place():
    config = read(
        {
            "TASKD_NODE_COMMAND": "ask 'for one'",
            "TASKD_CHECKPOINT_DIR": "/dumps",
            "TASKD_RESTART_WINDOW": "60",
            "TASKD_WAIT_RESCHEDULE_TIMEOUT": "30",
        }
    )
    assert (config.node_command, str(config.checkpoint_dir)) == ("ask 'for one'", "/dumps")
    assert (config.policy.budget.window_s, config.policy.deadlines.wait_node_s) == (60, 30)


@pytest.mark.parametrize("keys", [{}, {"node_command": "", "restart_window": 0}, {"restart_window": "0.0"}])
def test_without_them_there_is_no_command_no_dump_and_no_window(keys):
    config = read(**keys)
    assert (config.node_command, config.checkpoint_dir, config.policy.budget.window_s) == ("", None, None)
    assert not config.policy.strategies.dump_to


def test_an_empty_command_overrides_the_variable():
    assert read({"TASKD_NODE_COMMAND": "ask"}, node_command="").node_command == ""


@pytest.mark.parametrize(
    ("key", "env", "job_id"),
    [
        (None, {}, "default"),
        ("", {}, ""),
        (None, {"MINDX_TASK_ID": "m"}, "m"),
        (None, {"TASKD_JOB_ID": "t"}, "t"),
        (None, {"TASKD_JOB_ID": "t", "MINDX_TASK_ID": "t"}, "t"),
        ("k", {"TASKD_JOB_ID": "t", "MINDX_TASK_ID": "m"}, "k"),
    ],
)
def test_the_jobs_name_when_the_seeds_variable_is_unset(key, env, job_id):
    if job_id:
        assert read(env, job_id=key).job_id == job_id
    else:
        with pytest.raises(ConfigError, match="'job_id' of init_taskd_manager: found ''"):
            read(env, job_id=key)


def test_two_names_for_one_job_are_refused():
    with pytest.raises(ConfigError, match=r"TASKD_JOB_ID is 't' and MINDX_TASK_ID is 'm'.*unset one"):
        read({"TASKD_JOB_ID": "t", "MINDX_TASK_ID": "m"}, job_id=None)


@pytest.mark.parametrize("name", ["..", ".", "/", "a\0b", "a\nb", "\x1b[2J", "\udcff", "x" * 201, " / "])
def test_a_jobs_name_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match=r"'job_id' of init_taskd_manager: found .*expected a name: printable"):
        read({}, job_id=name)


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/../b", "größe"])
def test_the_folder_of_a_job_lies_in_the_run_directory(name):
    config = read({}, job_id=name)
    assert job_dir(config.run_dir, config.job_id).resolve().parent == config.run_dir.resolve()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"proc_per_nod": 8}, r"unknown key proc_per_nod \(did you mean proc_per_node\?\)"),
        ({"zzz": 1}, "unknown key zzz, expected some of job_id, node_nums, proc_per_node, host"),
        (
            {"node_nums": None},
            "'node_nums' of init_taskd_manager or TASKD_NODE_NUMS is missing, expected a whole number from 1",
        ),
        ({"node_nums": 0}, "found 0, expected a whole number from 1 to 100000"),
        ({"node_nums": "XX"}, "found 'XX', expected a whole number"),
        ({"node_nums": 2.5}, "found 2.5, expected a whole number"),
        ({"node_nums": True}, "found True, expected a whole number"),
        ({"proc_per_node": [8]}, r"found \[8\], expected a whole number"),
        ({"proc_per_node": "9" * 500}, r"found '9{70,80}…, expected a whole number"),
        ({"job_id": 7}, "found 7, expected text"),
        ({"host": "a b"}, "expected a host name, an address, or"),
        ({"port": 70000}, "found 70000, expected a whole number from 0 to 65535; leave it out for 9601"),
        ({"secret": 12345678901234567890}, "'secret' of init_taskd_manager: found a value .not shown."),
        ({"insecure": "yes"}, "found 'yes', expected on or off"),
        (
            {"recover_strategy": "recover,restart"},
            "some of retry, recover-in-place, recover, elastic-training, dump, exit",
        ),
        ({"recover_strategy": ""}, "expected some of retry"),
        ({"recover_strategy": 3}, "expected some of retry"),
        ({"node_command": ["ask"]}, r"'node_command' of init_taskd_manager: found \['ask'\], expected a command line"),
        ({"node_command": "a\0b"}, "expected a command line"),
        ({"checkpoint_dir": "dumps"}, "found 'dumps', expected an absolute path"),
        ({"restart_window": -1}, "found -1.0, expected a number of seconds from 0 to 31536000"),
        ({"wait_reschedule_timeout": 0}, "expected a number of seconds from 0.1 to 604800; leave it out for 270"),
        ({"pause_timeout_s": "soon"}, "found 'soon', expected a number of seconds"),
        ({"pause_timeout_s": float("nan")}, "found nan, expected a number of seconds"),
        ({"pause_timeout_s": 0}, "found 0.0, expected a number of seconds from 0.1"),
        (
            {"heartbeat_s": 5},
            "node_timeout_s is 10 and heartbeat_s is 5, expected .* at least 4 heartbeats; raise it to 20",
        ),
        ({"pipeline_stages": 5}, "found 5, expected a divisor of the 16 ranks of the job; leave it out for 1"),
        ({"run_dir": "here"}, "found 'here', expected an absolute path"),
        ({"run_dir": "/" + "x" * 80}, "expected a path of at most 60 bytes"),
    ],
)
def test_each_mistake_is_named_with_what_was_expected(keys, words):
    with pytest.raises(ConfigError, match=words):
        read(**keys)


@pytest.mark.parametrize("found", [None, [], "job", {1: 2}])
def test_what_is_no_dict_of_keys_is_refused(found):
    with pytest.raises(ConfigError, match="expected a dict"):
        ManagerConfig.from_mapping(found, {})


def test_the_secret_is_in_no_repr():
    assert SECRET not in repr(read(secret=SECRET))


@pytest.mark.parametrize(
    ("env", "sized_wait_s"),
    [
        ({}, 30.0),
        ({"TASKD_RECOVER_STRATEGY": "recover"}, None),
        ({"TASKD_WAIT_RESCHEDULE_TIMEOUT": "77"}, 77.0),
        ({"TASKD_NODE_COMMAND": "boot it"}, 270.0),
    ],
)
def test_torchruns_range_of_nodes_counts_where_no_strategy_is_chosen(env, sized_wait_s):
    assert read(env).policy.strategies.sized_wait_s == sized_wait_s
