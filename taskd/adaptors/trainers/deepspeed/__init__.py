"""DeepSpeed: engines of `deepspeed.initialize` with ZeRO 0, 1, 2 and 3, recovered in place.

Rules:

1. The engine's process groups are taskd's handles, which are re-formed under the same objects: nothing is re-pointed.
2. A step is the work of `engine.step()` at an accumulation boundary, from the optimizer's first change to its return. A
   step that is interrupted within is lost, and comes back from a replica (ZeRO 0) or from copies.
3. All ranks drop the remains of an interrupted step: gradients, buckets, hooks' counters, gathers under way, ZeRO-3's
   trace. So a new process and a surviving one make the same calls again.
4. Copies have the state that no other rank has: master weights, optimizer state, counters. Weights are gathered from
   them.
"""
