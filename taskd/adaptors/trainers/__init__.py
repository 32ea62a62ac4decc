"""Trainers that own the loop (Hugging Face's, Lightning, …): each is recovered in place by an adapter of its own.

Rules:

1. The user chooses an adapter by importing it; nothing else of taskd imports a trainer.
2. A table of seams beside the adapter has all that it overrides or reads in its library. A version that does not fit
   trains as it is, with one warning (`library`).
3. Without an agent, in a single process or under plain torchrun, the trainer trains as it does without taskd.
"""
