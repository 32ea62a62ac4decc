"""The domain's numbers, as distinct types: a global rank is not a local rank, a step is not a generation."""

from typing import NewType

JobId = NewType("JobId", str)
NodeRank = NewType("NodeRank", int)
GlobalRank = NewType("GlobalRank", int)
LocalRank = NewType("LocalRank", int)
Generation = NewType("Generation", int)
"""Number of a world of ranks; 0 is the first, raised by one for each attempt to build one. Every message carries it."""
Incarnation = NewType("Incarnation", int)
"""Number of a process that holds one rank; 0 is the first, raised by one for each replacement."""
Step = NewType("Step", int)
"""Count of committed training steps."""
