"""Kinds of small integers that must not be mixed up: mypy tells them apart, and at run time they are ints."""

from typing import Final, NewType

JobRank = NewType("JobRank", int)
"""A training process by its number in the full job. It keeps it for life."""
NOBODY: Final = JobRank(-1)
WorldRank = NewType("WorldRank", int)
"""The same by its number in the present world: another one if places are absent."""
LocalRank = NewType("LocalRank", int)
"""The same by its number on its node."""
NodeRank = NewType("NodeRank", int)
"""A place of the job: node rank p owns the job ranks p·k to p·k+k-1."""
