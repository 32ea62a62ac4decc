"""Collectives and transfers that a black box records. This is a separate module: every rank needs it at its start."""

from enum import IntEnum


class Operation(IntEnum):
    """Kind of a recorded call. The numbers are those of `csrc/taskd.h`."""

    OTHER = 0
    ALLREDUCE = 1
    ALLGATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALLTOALL = 8
    BARRIER = 9
    SEND = 10
    RECV = 11
    OPEN = 12
    CLOSE = 13
    KERNEL = 14
    """Any kernel of the backend that runs on the device. It belongs to no communicator."""
