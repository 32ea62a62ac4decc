"""Training state of simulated processes: a chain of hashes, which starts from another value for each replica set.

Also the exceptions by which a step may end.
"""


def chain(step: int, replicas: str = "") -> int:
    """Return the one correct state of a step in a replica set."""
    state = 1 + sum(map(ord, replicas))
    for number in range(1, step + 1):
        state = update(state, number)
    return state


def update(state: int, step: int) -> int:
    """Return the state after one more optimizer step."""
    return (state * 1_000_003 + step) % 2_147_483_647


class InterruptedStepError(Exception):
    """The process was ordered to pause and leaves at its commit."""


class StrayError(Exception):
    """An error of the script itself."""
