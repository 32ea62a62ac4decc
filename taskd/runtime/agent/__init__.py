"""The agent: a thread in each torchrun, and what it knows of the processes of its node."""
