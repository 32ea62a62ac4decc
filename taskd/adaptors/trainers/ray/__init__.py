"""Ray Train (version 2 of it): only the worker that has failed is replaced, and the others stay.

Rules:

1. Ray starts and replaces the workers, by its own means for replica groups; taskd gives each worker its rank and agent.
2. Process groups are made as Ray makes them. A worker that replaces another makes them alone, and joins later.
"""
