"""Selection of nodes that are healthy enough to train, before they do: by trials of their own and in pairs.

`scheduler` decides which node is checked when, and which may train. `check_run` is one check with its rounds. `check`
plans them (`pairing`) and keeps their results (`evidence`, `own`, `network`). `diagnosis` names the faulty and the slow
nodes. `probes` merges the results of one node's processes.
"""
