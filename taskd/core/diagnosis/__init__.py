"""What has happened to a job, from the evidence of its ranks: in the manager's process.

`watch.py` says when a job makes no progress, `diagnose.py` what the evidence comes to. Agents read `endings.py`, too.
"""
