"""Trainers that own the loop (Hugging Face's, Lightning, …): each is recovered in place by an adapter of its own.

Rules:

1. An adapter is chosen by the user, who imports it; nothing else of taskd imports a trainer.
2. What it overrides or reads in its library stands in a table of seams beside it. A version that does not fit trains as
   it is, with one warning (`library`).
3. Without an agent, in a single process or under plain torchrun, the trainer trains as it does without taskd.
"""
