"""torchrun: the patch of its agent, the ranks that it owns, and the processes that become ranks."""
