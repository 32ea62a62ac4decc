"""Proof, made by a job itself in its first steps, that it can go on exactly after a fault."""
