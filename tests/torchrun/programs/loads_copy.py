"""Loads a copy of torch's run.py as the module, and prints the launcher's agent class: `loads_copy.py COPY`."""

import importlib.util
import sys

spec = importlib.util.spec_from_file_location("torch.distributed.run", sys.argv[1])
assert spec is not None
assert spec.loader is not None
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import torch.distributed.launcher.api as launcher  # noqa: E402

print(callable(module.main), launcher.LocalElasticAgent.__name__)
