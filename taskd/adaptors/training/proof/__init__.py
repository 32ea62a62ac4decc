"""Whether a job can go on exactly after a recovery: found out by the job itself, before a fault does."""
