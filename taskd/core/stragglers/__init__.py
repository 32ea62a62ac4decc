"""Slow ranks, nodes, loaders and networks of a job that trains, found step by step.

`rows` makes whole steps of what single ranks report, `detector` follows them (`compare` has the statistics, `work` what
more data costs), `diagnosis` says what it found, and `exclusion` whether a node leaves for it. `pacing` is the whole.
"""
