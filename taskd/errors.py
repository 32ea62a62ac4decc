"""The one error tree. The type says who is to blame; the message what was found, what was expected, and the remedy."""


class TaskdError(Exception):
    """Root of all errors raised by taskd."""


class ConfigError(TaskdError):
    """A setting is unknown, of a wrong type, out of range, or contradicts another one. The user mends the setting."""


class StatementError(ConfigError):
    """What the script states of its state is contradicted by what another rank has. No new process can do better."""


class PatchError(TaskdError):
    """The installed torch does not have the seams that taskd knows. What needs them is left as torch made it."""


class ShimError(TaskdError):
    """`libtaskd.so`, its core or a black box is missing, of another version, or damaged."""


class WireError(TaskdError):
    """A peer sent what must not be sent. The message is refused and nothing has changed."""


class FrameError(WireError):
    """A frame is too large, not decodable, or of an unknown kind or version."""


class SecretError(WireError):
    """The job secret is missing or does not match the peer's."""


class LinkError(TaskdError):
    """A peer cannot be reached: an address does not resolve, a port is taken, a socket is gone."""


class RoomError(TaskdError):
    """This process may not have what it needs with taskd in it, such as descriptors. It runs as without taskd."""


class ProbeError(TaskdError):
    """A device, disk or network does not do what a node check asks of it. A finding about the node."""


class RecoveryError(TaskdError):
    """A phase of a recovery failed on this rank. Caught by the worker loop and reported; users see it in the record."""


class RebuildError(RecoveryError):
    """The process groups of the new generation could not be formed."""


class RefusedError(RebuildError):
    """These processes cannot train on together in any new world: all are to start anew, without further attempts."""


class StaleLockError(TaskdError):
    """What this process waited for was being built by one that is dead. A new process of the rank builds it anew."""


class RestoreError(RecoveryError):
    """The training state could not be brought to the target step."""


class DistrustError(RestoreError):
    """What a donor has sent is not what it has."""


class CopyError(TaskdError):
    """A copy of the state was not made: the next one may be."""


class CheckpointError(TaskdError):
    """A checkpoint could not be written, or does not fit what it is loaded into. Nothing half-written is left."""


class TransitionError(TaskdError):
    """An event came in a phase whose table does not know it. Nothing has changed. A bug in taskd: please report it."""


class RecordError(TaskdError):
    """What was asked for is no process of taskd, no black box, or no record of a job. Nothing was changed."""


class ChaosError(TaskdError):
    """A scenario of `taskd chaos` cannot be played here, or not on this process. What was changed has been undone."""


class FolderError(TaskdError, OSError):
    """A folder or file that was found where this user's own has to be, and that belongs to somebody else."""


class RehearsalError(TaskdError):
    """A script cannot be rehearsed here. The user mends the command or the script."""
