"""The manager's process: one for each job, or a thread of the agent if a job on one node has none."""
