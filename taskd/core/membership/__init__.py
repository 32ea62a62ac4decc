"""Which nodes a job has, which of them are heard, and whether those are enough to decide: in the manager's process."""
