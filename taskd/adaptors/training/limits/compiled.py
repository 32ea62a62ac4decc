"""Kernels that a new process has compiled itself: their results may differ in the last bits from its predecessor's.

torch's inductor keeps kernels in a folder that the processes of a node share. Kernels that a new process finds there
are the same. Kernels that it compiles itself may be tuned differently, or be for other shapes than the first ones.
"""

import sys
from typing import Any


def compiled_anew() -> str:
    """Describe what this process has compiled itself; return "" if nothing, or if that is not known."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is None or "torch._inductor.compile_fx" not in sys.modules:
        return ""
    told = counters.get("inductor", {})
    made = sum(int(told.get(f"fxgraph_cache_{how}", 0)) for how in ("miss", "bypass"))
    if not made:
        return ""
    return f"{made} graphs were compiled anew, not found in inductor's cache: the last bits of their results may differ"
