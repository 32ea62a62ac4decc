"""The agent: a thread in each torchrun, and its records of the processes of its node."""
