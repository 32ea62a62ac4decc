"""Nodes of a job, those that report, and the quorum that may decide about the others: in the manager's process."""
