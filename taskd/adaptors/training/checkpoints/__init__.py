"""Checkpoints of a training state: their files on disk, their writers, and the return to one of them."""
