"""DeepSpeed: engines of `deepspeed.initialize` with ZeRO 0, 1, 2 and 3, recovered in place.

Rules:

1. The engine's process groups are taskd's handles, which are re-formed under the same objects: nothing is re-pointed.
2. A step is what `engine.step()` does at an accumulation boundary, from the optimizer's first change to its return. A
   step that is interrupted within is lost, and comes back from a replica (ZeRO 0) or from copies.
3. What an interrupted step has left (gradients, buckets, hooks' counters, gathers under way, ZeRO-3's trace) is dropped
   on all ranks, so that a new process and a surviving one make the same calls again.
4. Copies have what no other rank has: master weights, optimizer state, counters. Weights are gathered from them.
"""
