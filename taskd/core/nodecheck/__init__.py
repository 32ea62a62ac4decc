"""Which nodes are healthy enough to train: found before they do, by trials of their own and in pairs.

`scheduler` decides who is checked when, and who may train. `check_run` is one check with its rounds, `check`
plans them (`pairing`) and keeps what they show (`evidence`, `own`, `network`); `diagnosis` says who is faulty or slow.
`probes` puts together what the processes of one node have found.
"""
