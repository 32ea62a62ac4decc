"""Megatron-LM's core (`megatron.core`): the needs of its models, optimizers and globals for a recovery in place.

Rules:

1. Its process groups are handles. `parallel_state`, wrappers and optimizers hold the same objects in every world, and
   none of them is made anew. So nothing of Megatron is replaced here; it is read, and reset at a recovery.
2. The ranks with the same state are read from the groups of its `DistributedDataParallel`. They are the data-parallel
   ranks, and none of them if its distributed optimizer divides the state among those.
3. A training with unknown features (`limits`) runs as it is: at a fault all processes start anew.
"""
