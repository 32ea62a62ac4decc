"""PyTorch Lightning: its strategies, with recovery in place.

Rules:

1. The user gives the trainer a strategy of taskd's, and nothing else. It puts a resilient function around the loop over
   epochs (`fit`), and keeps the trainer's values (`kept`).
2. All replacements are made on the objects of one trainer, for the length of one fit: no class of Lightning's is
   changed.
"""
