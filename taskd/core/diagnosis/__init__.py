"""Diagnosis of a job from the evidence of its ranks. It runs in the manager's process.

`watch.py` detects that a job makes no progress, and `diagnose.py` turns the evidence into a diagnosis. Agents use
`endings.py`, too.
"""
