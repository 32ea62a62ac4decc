"""Limits of recovery in place: obstacles to it, or to its exactness, are found, reported and refused."""
