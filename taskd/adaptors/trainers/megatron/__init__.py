"""Megatron-LM's core (`megatron.core`): what its models, optimizers and globals need for a recovery in place.

Rules:

1. Its process groups are handles: `parallel_state`, wrappers and optimizers hold the same objects in every world, and
   nothing of theirs is made anew. So nothing of Megatron is replaced here; it is read, and reset at a recovery.
2. Who holds the same is read from the groups of its `DistributedDataParallel`: the data-parallel ranks, and none of
   them if its distributed optimizer divides the state among those.
3. What this taskd does not know (`limits`) trains as it is: at a fault all processes start anew.
"""
