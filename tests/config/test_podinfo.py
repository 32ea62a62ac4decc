"""The pod's annotations: the downward API's output is understood, and comes after keys and variables."""

import logging
import os
from pathlib import Path

import pytest

from taskd.config import settings
from taskd.config.manager import ManagerConfig
from taskd.config.reading import Annotation, Source
from taskd.core.policy import Policy, Strategy
from taskd.errors import ConfigError

SIX = "retry, recover-in-place, recover, elastic-training, dump, exit"
DEFAULT = Policy(job_id="", node_count=1, ranks_per_node=1)
POD = (
    'kubernetes.io/config.seen="2026-11-20T21:00:00.0Z"\n'
    'note="two\\nlines, \\"quoted\\", a \\\\ and = and \\u00e9 \\x00"\n'
    'recover-strategy="{}"\n'
    'wait-reschedule-timeout="{}"'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "annotations"
    path.write_text(POD.format("dump, retry", "120"))
    return path


def read(file, env=None, **keys):
    env = {"TASKD_PODINFO": str(file)} | (env or {})
    return ManagerConfig.from_mapping({"node_nums": 2, "proc_per_node": 8} | keys, env)


def allowed_and_wait_s(config):
    return config.policy.strategies.allowed, config.policy.deadlines.wait_node_s


def test_the_pods_words_and_seconds_reach_the_policy(file):
    policy = read(file).policy
    assert policy.strategies.allowed == (Strategy.RETRY, Strategy.DUMP, Strategy.EXIT)
    assert policy.deadlines.wait_node_s == 120


def test_a_key_comes_before_a_variable_and_that_before_the_pod(file):
    env = {"TASKD_RECOVER_STRATEGY": "recover", "TASKD_WAIT_RESCHEDULE_TIMEOUT": "60.5"}
    config = read(file, env)
    assert allowed_and_wait_s(config) == ((Strategy.RECOVER, Strategy.EXIT), 60.5)
    config = read(file, env, recover_strategy="elastic-training", wait_reschedule_timeout=30)
    assert allowed_and_wait_s(config) == ((Strategy.ELASTIC_TRAINING, Strategy.EXIT), 30)


def test_a_value_is_called_by_the_place_that_gave_it():
    annotations = {"recover-strategy": Annotation("exit", "the pod")}
    assert Source({}, {}, annotations).label(settings.STRATEGY) == "the pod"
    assert (
        Source({"TASKD_RECOVER_STRATEGY": "exit"}, {}, annotations).label(settings.STRATEGY) == settings.STRATEGY.name
    )


def test_one_of_two_from_the_pod(file):
    config = read(file, {"TASKD_RECOVER_STRATEGY": "exit"})
    assert allowed_and_wait_s(config) == ((Strategy.EXIT,), 120)
    config = read(file, wait_reschedule_timeout=9)
    assert (config.policy.strategies.allowed[0], config.policy.deadlines.wait_node_s) == (Strategy.RETRY, 9)


@pytest.mark.parametrize("lines", ["", "\n", 'recover-strategy=""', 'recover-strategys="exit"\nno equals sign'])
def test_a_pod_that_says_nothing_leaves_the_defaults(file, lines):
    file.write_text(lines)
    assert read(file).policy.strategies.allowed == DEFAULT.strategies.allowed
    assert read(file).policy.deadlines.wait_node_s == DEFAULT.deadlines.wait_node_s == 270


def test_the_default_is_without_elastic_training_and_dump():
    assert DEFAULT.strategies.allowed == (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.EXIT)


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("exit,retry,exit", (Strategy.RETRY, Strategy.EXIT)),
        (" dump ,recover ", (Strategy.RECOVER, Strategy.DUMP, Strategy.EXIT)),
        ("exit,dump,elastic-training,recover,recover-in-place,retry", tuple(Strategy)),
        ("re\\u0074ry,\\x65xit", (Strategy.RETRY, Strategy.EXIT)),
        ("retry,\\n\\tdump\\U00000020", (Strategy.RETRY, Strategy.DUMP, Strategy.EXIT)),
    ],
)
def test_words_in_any_order_and_quoting(file, words, allowed):
    file.write_text(POD.format(words, 5))
    assert read(file).policy.strategies.allowed == allowed


@pytest.mark.parametrize(
    ("keys", "env", "place"),
    [
        ({"recover_strategy": "retry,restart"}, {}, "'recover_strategy' of init_taskd_manager"),
        ({}, {"TASKD_RECOVER_STRATEGY": "retry,restart"}, "TASKD_RECOVER_STRATEGY"),
        ({}, {}, "the annotation recover-strategy ({}, line 3)"),
    ],
)
def test_an_unknown_word_is_named_with_its_place_and_the_six(file, keys, env, place):
    file.write_text(POD.format("retry,restart", 5))
    with pytest.raises(ConfigError) as info:
        read(file, env, **keys)
    assert str(info.value).startswith(f"{place.format(file)}: found 'retry,restart', expected some of {SIX}")
    assert "(unknown: restart (did you mean" in str(info.value)


def test_an_unknown_word_leads_to_the_nearest(file):
    with pytest.raises(ConfigError, match=r"unknown: recover_in_place \(did you mean recover-in-place\?\)"):
        read(file, recover_strategy="recover_in_place")


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "1e9"])
def test_a_wait_that_is_no_time_is_named_with_its_line(file, value):
    file.write_text(POD.format("retry", value))
    with pytest.raises(ConfigError, match=r"annotation wait-reschedule-timeout \(.*annotations, line 4\): found"):
        read(file)


@pytest.mark.parametrize("line", ["recover-strategy=retry", 'recover-strategy="retry', r'recover-strategy="\q"'])
def test_what_the_downward_api_does_not_write_is_refused(file, line):
    file.write_text(line)
    with pytest.raises(ConfigError, match=r"annotation recover-strategy \(.*line 1\): found .* double quotes"):
        read(file)
    assert read(file, recover_strategy="exit").policy.strategies.allowed == (Strategy.EXIT,)


def test_no_file_is_no_matter_unless_it_was_named(tmp_path, caplog):
    missing = tmp_path / "none"
    assert read(missing).policy.strategies.allowed == DEFAULT.strategies.allowed
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"TASKD_PODINFO names {missing}, which does not exist" in caplog.text


@pytest.mark.parametrize("content", [b'recover-strategy="\xff"', None])
def test_a_file_that_cannot_be_read_may_hold_what_the_job_forbids(tmp_path, caplog, content):
    file = tmp_path / "annotations"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"annotations in {file} cannot be read .* set TASKD_RECOVER_STRATEGY"):
        read(file)
    assert not caplog.records
    config = read(file, {"TASKD_RECOVER_STRATEGY": "retry"})
    assert allowed_and_wait_s(config) == (
        (Strategy.RETRY, Strategy.EXIT),
        270,
    )
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_that_nobody_needs_is_not_opened(tmp_path, caplog):
    os.mkfifo(tmp_path / "fifo")
    read(tmp_path / "fifo", recover_strategy="exit", wait_reschedule_timeout=1)
    assert not caplog.records
