"""Ranks whose processes somebody else has started: actors of Ray, or any process that requests a rank.

Rules:

1. Nothing here starts a rank's process. A process requests a rank (`attach`). Its starter replaces it when it dies, and
   the new process requests the same rank.
2. Each rank has an agent in a process of its own (`side`). The rank's first process starts it, and it outlives that
   process. It detects the death, keeps what the dead process has stored, and hands that to the next one.
3. The manager, and the store over which new worlds meet, are in one place that outlives all ranks (`office`).
"""
