"""Positions of a rank in its random numbers and its data, recorded step by step. They outlive the process."""
