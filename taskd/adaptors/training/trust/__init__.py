"""Whether a state can be trusted: replicas compared, the first step after a restore, losses that are not finite."""
