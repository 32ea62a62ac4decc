"""Construction of the agent's runtime in torchrun, and the room for it first: no other module here constructs it."""

import logging
import sys

from torch.distributed.elastic.agent.server.api import WorkerSpec

from taskd.adaptors.torchrun.command import parse_command
from taskd.adaptors.torchrun.given import keeps_logs
from taskd.adaptors.torchrun.isolation import isolated
from taskd.adaptors.torchrun.start import restore_inherited
from taskd.config.process import hand_down, profile_nccl, withhold
from taskd.config.settings import DESCRIPTORS, SECRET, SIGCHLD_IGNORED
from taskd.core.descriptors import needed_descriptors, plan_descriptors
from taskd.errors import RoomError
from taskd.runtime.agent.ports import Command, NodeRuntime
from taskd.runtime.system.descriptors import (
    descriptor_limits,
    fill_standard_descriptors,
    open_descriptors,
    set_descriptor_limit,
)
from taskd.runtime.system.sigchld import stop_ignoring_sigchld

logger = logging.getLogger(__name__)


def make_node_runtime(master_addr: str | None, node_count: int, spec: WorkerSpec) -> NodeRuntime:
    """Make the runtime for the ranks of `spec`.

    Raises:
        ConfigError, SecretError: a setting is wrong, or the manager's address needs a secret.
        RoomError: this process may not have as many descriptors as it needs, or the system has no room for the agent.
        LinkError: the agent's socket cannot be had.
    """
    with isolated():
        from taskd.adaptors.torchrun.store import NodeStore
        from taskd.config.agent import AgentConfig
        from taskd.runtime.agent.agent import NodeAgent
        from taskd.runtime.box.elf import flaw
        from taskd.runtime.box.shim import REINSTALL, library_path

    fill_standard_descriptors()
    config = AgentConfig.from_environment(master_addr=master_addr, node_count=node_count)
    if config.manager is not None:
        config.security.check(config.manager, "connect to")
    withhold(SECRET)  # a rank needs none, and shows its environment to trackers and logs
    needed = needed_descriptors(
        open_descriptors(),
        spec.local_world_size,
        config.standbys,
        node_count,
        embeds=config.manager is None,
        logs=keeps_logs(spec),
    )
    command = parse_command(spec.entrypoint, spec.args, sys.executable)
    _find_descriptors(needed, command)
    if config.nccl_times:
        plugin = library_path()
        wrong = flaw(plugin)
        if reason := f"{plugin} {wrong}; {REINSTALL}" if wrong else profile_nccl(plugin):
            logger.warning("no times of NCCL's kernels, and so no slow ranks of jobs that use it: %s", reason)
    if stop_ignoring_sigchld():
        hand_down(SIGCHLD_IGNORED, 1)
    try:
        return NodeAgent(config, NodeStore(config.manager).serve, named=command.wrapper)
    except OSError as error:
        restore_inherited()
        text = f"the agent of this node cannot be made ({error}); make room for files, memory and descriptors"
        raise RoomError(text) from error
    except Exception:
        restore_inherited()
        raise


def _find_descriptors(needed: int, command: Command) -> None:
    """Allow this process `needed` descriptors, and ranks of `command` no more than before. Raises `RoomError`."""
    soft, hard = descriptor_limits()
    plan = plan_descriptors(needed, soft, hard, "" if command.python else command.reason)
    if plan.refusal:
        raise RoomError(plan.refusal)
    if plan.limit is not None:
        set_descriptor_limit(plan.limit)
        hand_down(DESCRIPTORS, soft)
        logger.info("limit of descriptors raised for torchrun: soft=%d needed=%d hard=%d", soft, needed, hard)
