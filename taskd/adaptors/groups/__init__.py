"""Process groups that outlive a fault: recorded when the script makes them, made again in the next generation.

`GroupWorld` is the whole interface; the other modules serve it. torch is imported first, as in
`taskd.adaptors.training`.
"""

import torch  # noqa: F401

from taskd.adaptors.groups.world import GroupWorld

__all__ = ["GroupWorld"]
