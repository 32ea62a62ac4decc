"""A rank that attaches as torchrun's ranks do, with its log on stdout, and trains."""

import logging
import sys

from taskd.adaptors.torchrun.script import _attach
from taskd.config.worker import WorkerConfig

logging.basicConfig(stream=sys.stdout)
config = WorkerConfig.from_environment()
assert config is not None
_attach(config)
print("trains")
