"""The manager's configuration, checked and frozen: the dict of `init_taskd_manager`, the environment, the pod."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taskd.config import settings
from taskd.config.address import ALL_INTERFACES, LOOPBACK, Address, is_host
from taskd.config.job import job_id
from taskd.config.podinfo import with_annotations
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.config.schema import unknown_names
from taskd.config.security import Security
from taskd.core.policy import BudgetPolicy, Deadlines, Membership, NodeCheckPolicy, Policy, StrategyPolicy, Tempo
from taskd.errors import ConfigError

_SUSPECT_HEARTBEATS = Membership().suspect_s / Membership().heartbeat_s
"""Silence, in heartbeats, after which a node is suspected."""
_MIN_HEARTBEATS = 4
LAST_CALL_S = 30.0
"""Seconds that torchrun waits for more than MIN nodes (`last_call_timeout` of its rendezvous)."""


@dataclass(frozen=True)
class ManagerConfig:
    """Settings of the manager: its address, its security, and the policy by which its core decides.

    `node_command` requests a node from the cluster; it is empty if there is no such command. `checkpoint_dir` is the
    directory of a dump; None if the job has no dump.
    """

    listen: Address
    security: Security
    policy: Policy
    run_dir: Path
    node_command: str = ""
    checkpoint_dir: Path | None = None

    @property
    def job_id(self) -> str:
        """The job's name."""
        return self.policy.job_id

    @classmethod
    def from_mapping(cls, keys: Mapping[str, object], env: Mapping[str, str] | None = None) -> "ManagerConfig":
        """Read the dict of `init_taskd_manager`. Absent keys come from the environment, the pod, or the default.

        Raises `ConfigError` for an unknown key, a value of a wrong kind or range, and a contradiction between values.
        """
        _refuse_unknown(keys)
        source = with_annotations(Source(os.environ if env is None else env, keys))
        security = Security.from_source(source)
        host = listening_host(source) or (LOOPBACK if security.secret is None else ALL_INTERFACES)
        return cls(
            listen=Address(host, source.whole(settings.PORT)),
            security=security,
            policy=_policy(source),
            run_dir=run_dir(source),
            node_command=source.command(settings.NODE_COMMAND),
            checkpoint_dir=source.path(settings.CHECKPOINT_DIR),
        )


def listening_host(source: Source) -> str | None:
    """Return the host on which the manager is configured to listen, or None. Raises `ConfigError`."""
    host = source.text(settings.HOST)
    if host is not None and host != ALL_INTERFACES and not is_host(host):
        raise source.refuse(settings.HOST, host, "a host name, an address, or * for all interfaces")
    return host


def _policy(source: Source) -> Policy:
    nodes, per_node = source.whole(settings.NODE_NUMS), source.whole(settings.PROC_PER_NODE)
    stages = source.whole(settings.PIPELINE_STAGES)
    if nodes * per_node % stages:
        expected = f"a divisor of the {nodes * per_node} ranks of the job"
        raise source.refuse(settings.PIPELINE_STAGES, stages, expected)
    return Policy(
        job_id=job_id(source),
        node_count=nodes,
        ranks_per_node=per_node,
        pipeline_stages=stages,
        recover_hangs=source.switch(settings.HANG_RECOVERY),
        recover_slow=source.switch(settings.SLOW_RECOVERY),
        strategies=StrategyPolicy(
            allowed=source.strategies(settings.STRATEGY),
            sized_wait_s=_sized_wait_s(source),
            dump_to=os.fsencode(source.path(settings.CHECKPOINT_DIR) or ""),
            replace_corrupted=source.switch(settings.CORRUPTION_RECOVERY),
        ),
        budget=BudgetPolicy(
            max_restarts=source.whole_or_none(settings.MAX_RESTARTS),
            window_s=source.seconds_or_none(settings.RESTART_WINDOW) or None,
        ),
        tempo=_tempo(source),
        deadlines=_deadlines(source),
        membership=_membership(source),
        node_check=NodeCheckPolicy(
            timeout_s=source.seconds(settings.NODE_CHECK_TIMEOUT_S), margin=source.factor(settings.NODE_CHECK_MARGIN)
        ),
    )


def _sized_wait_s(source: Source) -> float | None:
    """Return how many seconds a job with `--nnodes=MIN:MAX` waits for a node before it trains with fewer.

    Return None if strategies are chosen. Otherwise `--nnodes=MIN:MAX` has the same meaning as in torchrun.
    """
    if source.chosen(settings.STRATEGY):
        return None
    waits = source.chosen(settings.WAIT_RESCHEDULE_TIMEOUT) or source.command(settings.NODE_COMMAND)
    return source.seconds(settings.WAIT_RESCHEDULE_TIMEOUT) if waits else LAST_CALL_S


def _deadlines(source: Source) -> Deadlines:
    return Deadlines(
        confirm_s=source.seconds(settings.CONFIRM_S),
        pause_s=source.seconds(settings.PAUSE_TIMEOUT_S),
        pause_limit_s=source.seconds(settings.PAUSE_LIMIT_S),
        replace_s=source.seconds(settings.REPLACE_TIMEOUT_S),
        join_s=source.seconds(settings.JOIN_TIMEOUT_S),
        resume_s=source.seconds(settings.RESUME_TIMEOUT_S),
        merge_s=source.seconds(settings.MERGE_WINDOW_S),
        wait_node_s=source.seconds(settings.WAIT_RESCHEDULE_TIMEOUT),
    )


def _tempo(source: Source) -> Tempo:
    return Tempo(
        first_s=source.seconds(settings.HANG_FIRST_S),
        phase_s=source.seconds(settings.HANG_PHASE_S),
        floor_s=source.seconds(settings.HANG_MIN_S),
        factor=source.whole(settings.HANG_FACTOR),
        unproven_s=source.seconds(settings.HANG_UNPROVEN_S),
    )


def _membership(source: Source) -> Membership:
    heartbeat_s, dead_s = source.seconds(settings.HEARTBEAT_S), source.seconds(settings.NODE_TIMEOUT_S)
    if dead_s < _MIN_HEARTBEATS * heartbeat_s:
        raise ConfigError(
            f"node_timeout_s is {dead_s:g} and heartbeat_s is {heartbeat_s:g}, expected node_timeout_s to be at least "
            f"{_MIN_HEARTBEATS} heartbeats; raise it to {_MIN_HEARTBEATS * heartbeat_s:g} or lower heartbeat_s"
        )
    suspect_s = min(_SUSPECT_HEARTBEATS * heartbeat_s, dead_s)
    return Membership(heartbeat_s=heartbeat_s, suspect_s=suspect_s, dead_s=dead_s)


def _refuse_unknown(keys: object) -> None:
    if not isinstance(keys, Mapping) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f"init_taskd_manager: found {type(keys).__name__}, expected a dict with keys that are text; give "
            '{"job_id": …, "node_nums": …, "proc_per_node": …}'
        )
    known = settings.manager_keys()
    unknown = unknown_names(keys, known)
    if unknown:
        raise ConfigError(
            f"init_taskd_manager: found the unknown key {', '.join(name.advice for name in unknown)}, expected some of "
            f"{', '.join(known)}; correct or remove it"
        )
