"""A module whose import touches a device, as CUDA's first use does."""

import os

import torch


def spoil() -> None:
    vars(torch.cuda)["_is_in_bad_fork"] = lambda: True


os.register_at_fork(after_in_child=spoil)
