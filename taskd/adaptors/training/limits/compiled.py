"""Whether what a new process has compiled may differ in the last bits from what its predecessor ran.

torch's inductor keeps kernels in a folder that the processes of a node share. Those that a new process finds there are
the same. Those that it makes itself may have been tuned otherwise, or be for other shapes than the first ones.
"""

import sys
from typing import Any


def compiled_anew() -> str:
    """What this process has compiled by itself, in words; "" if nothing, or if that is not known."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is None or "torch._inductor.compile_fx" not in sys.modules:
        return ""
    told = counters.get("inductor", {})
    made = sum(int(told.get(f"fxgraph_cache_{how}", 0)) for how in ("miss", "bypass"))
    if not made:
        return ""
    return f"{made} graphs were compiled anew, not found in inductor's cache: the last bits of their results may differ"
