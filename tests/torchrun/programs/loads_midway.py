"""Loads taskd's plugin while the launcher is being imported, as torch does, and prints the launcher's agent class."""

import sys

from taskd.adaptors.torchrun.imports import after_import

LAUNCHER = "torch.distributed.launcher.api"


def load_plugin(_module: object) -> None:
    spec = sys.modules[LAUNCHER].__spec__
    assert spec is not None
    assert vars(spec)["_initializing"]
    import taskd.python.adaptor.patch  # noqa: F401


after_import("torch.distributed.elastic.rendezvous.api", load_plugin)
import torch.distributed.launcher.api as launcher  # noqa: E402

print(launcher.LocalElasticAgent.__name__)
