"""Copies of a rank's state in the shared memory of its own node and of another one, if no other rank holds it."""
