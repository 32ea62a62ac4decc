"""Ranks whose processes somebody else has started: actors of Ray, or any process that asks for a rank.

Rules:

1. Nobody here starts a rank's process. A process asks for a rank (`attach`); whoever has started it replaces it when it
   dies, and the new one asks for the same rank.
2. Each rank has an agent in a process of its own (`side`), which the rank's first process starts and which outlives it:
   it sees the death, keeps what the dead one has put down, and hands that to the next one.
3. The manager, and the store over which new worlds meet, are in one place that outlives all ranks (`office`).
"""
