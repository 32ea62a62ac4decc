"""All errors that taskd raises, in one tree.

The type names the culprit. The message states what was found, what was expected, and the remedy.
"""


class TaskdError(Exception):
    """Root of all errors raised by taskd."""


class ConfigError(TaskdError):
    """A setting is unknown, of a wrong type, out of range, or contradicts another one. The user has to correct it."""


class StatementError(ConfigError):
    """A statement of the script about its state contradicts another rank's state. A new process would fail too."""


class PatchError(TaskdError):
    """The installed torch lacks seams that taskd expects. The parts that need them stay as torch made them."""


class ShimError(TaskdError):
    """`libtaskd.so`, its core or a black box is missing, of another version, or damaged."""


class WireError(TaskdError):
    """A peer sent an invalid message. It is rejected, and nothing has changed."""


class FrameError(WireError):
    """A frame is too large, not decodable, or of an unknown kind or version."""


class SecretError(WireError):
    """The job secret is missing or does not match the peer's."""


class LinkError(TaskdError):
    """A peer cannot be reached: an address does not resolve, a port is taken, a socket is gone."""


class RoomError(TaskdError):
    """The system denies this process a resource that taskd needs, such as descriptors. It runs as without taskd."""


class ProbeError(TaskdError):
    """A device, disk or network fails a probe of a node check. This is a finding about the node."""


class RecoveryError(TaskdError):
    """A phase of a recovery failed on this rank. The worker loop catches and reports it; users see it in the record."""


class RebuildError(RecoveryError):
    """The process groups of the new generation could not be formed."""


class RefusedError(RebuildError):
    """These processes cannot continue together in any new world. All start anew, without further attempts."""


class StaleLockError(TaskdError):
    """A build that this process waited for belonged to a dead process. A new process of the rank repeats the build."""


class RestoreError(RecoveryError):
    """The training state could not be brought to the target step."""


class DistrustError(RestoreError):
    """A state from a donor or a copy differs from the original."""


class CopyError(TaskdError):
    """A copy of the state failed. The next copy may succeed."""


class CheckpointError(TaskdError):
    """A checkpoint could not be written, or does not fit the state that loads it. Nothing half-written is left."""


class TransitionError(TaskdError):
    """An event arrived in a phase whose table has no entry for it. Nothing has changed.

    This is a bug in taskd: please report it.
    """


class RecordError(TaskdError):
    """The requested object is no process of taskd, no black box, or no record of a job. Nothing was changed."""


class ChaosError(TaskdError):
    """A scenario of `taskd chaos` cannot be played here, or not on this process. All changes have been undone."""


class FolderError(TaskdError, OSError):
    """A folder or file belongs to another user, but this user's own is required at its path."""


class RehearsalError(TaskdError):
    """A script cannot be rehearsed here. The user has to correct the command or the script."""
