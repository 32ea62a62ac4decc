"""torchrun where taskd's plugin is not found."""

import importlib.metadata

entry_points = importlib.metadata.entry_points
vars(importlib.metadata)["entry_points"] = lambda **k: (
    () if k.get("group") == "torchrun.handlers" else entry_points(**k)
)
from torch.distributed.run import main  # noqa: E402

main()
