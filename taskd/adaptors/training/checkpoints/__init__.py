"""Checkpoints of a training state: how they lie on a disk, who writes them, and the way back to one."""
