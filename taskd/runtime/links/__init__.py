"""ZeroMQ between agents, manager and operators: sockets, proofs of identity, and bounds for strangers."""
