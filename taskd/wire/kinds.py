"""Types of small integers that must not be mixed up. mypy distinguishes them; at run time they are ints."""

from typing import Final, NewType

JobRank = NewType("JobRank", int)
"""Number of a training process in the full job. The process keeps it for life."""
NOBODY: Final = JobRank(-1)
WorldRank = NewType("WorldRank", int)
"""Number of a training process in the present world. It differs from the `JobRank` if places are absent."""
LocalRank = NewType("LocalRank", int)
"""Number of a training process on its node."""
NodeRank = NewType("NodeRank", int)
"""Number of a place of the job. With k ranks per node, node rank p owns the job ranks p·k to p·k+k-1."""
