"""Detection of slow ranks, nodes, loaders and networks in a job that trains, step by step.

`rows` joins the reports of single ranks to whole steps, and `detector` follows them. `compare` has the statistics, and
`work` the cost of more data. `diagnosis` describes a straggler, and `exclusion` decides whether its node leaves.
`pacing` combines them all.
"""
