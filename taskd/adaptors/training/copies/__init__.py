"""Copies of a rank's state in shared memory, of its own node and of another, for a state that no other rank has."""
