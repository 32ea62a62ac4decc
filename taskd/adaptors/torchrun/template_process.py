"""The agent's side of the template: the one process of this node that forks standbys.

Rules:

1. The template leads a session of its own. Its idle standbys are members of its process group. A standby that has
   become a rank is not. So killing the group ends all idle processes and nothing else.
2. The template is reaped only after its group has been killed, so that the group's number stays ours until then.
"""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from taskd.adaptors.torchrun.children import OrphanGroups, become_subreaper, has_ended, reap_group, signal_group
from taskd.adaptors.torchrun.command import START, template_arguments
from taskd.config.process import starting_with
from taskd.errors import RecoveryError
from taskd.runtime.agent.ports import Command

logger = logging.getLogger(__name__)

_END_TIMEOUT_S = 5.0


class TemplateProcess:
    """Owner of at most one template at a time, for ranks of `command`. All methods may be called from any thread."""

    def __init__(self, command: Command | None) -> None:
        self._arguments = template_arguments(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._groups = OrphanGroups()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, env: Mapping[str, str]) -> int:
        """Kill the previous template, if any, and start a new one with exactly `env`. Returns its pid.

        Raises `RecoveryError` if the operating system refuses, or after `close`.
        """
        with self._lock:
            if self._closed:
                raise RecoveryError("torchrun is ending, expected no request for a template any more")
            self._kill()
            become_subreaper()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *self._arguments],
                    env={**env, **starting_with(START, env)},
                    start_new_session=True,
                )
            except OSError as error:
                raise RecoveryError(
                    f"the template could not be started: {error}; ranks start cold, or set TASKD_STANDBY=0"
                ) from error
            return self._process.pid

    def release(self, pid: int) -> "subprocess.Popen[bytes] | None":
        """Stop owning the template if it has become the rank with this pid. Returns None for another process."""
        with self._lock:
            if self._process is None or self._process.pid != pid:
                return None
            process, self._process = self._process, None
            return process

    def reap(self) -> tuple[int, ...]:
        """Collect dead standbys, and a dead template together with its idle standbys. Does not block."""
        with self._lock:
            process = self._process
            if process is None:
                return self._groups.reap()
            if has_ended(process.pid):
                self._kill()
                return (process.pid, *self._groups.reap())
            return (*reap_group(process.pid), *self._groups.reap())

    def close(self) -> None:
        """Kill the template and its idle standbys, and refuse new ones."""
        with self._lock:
            self._closed = True
            self._kill()
            self._groups.reap()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        signal_group(process.pid, signal.SIGKILL)
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("template %d has not ended %.0f s after SIGKILL; left behind", process.pid, _END_TIMEOUT_S)
            return
        self._groups.add(process.pid)
