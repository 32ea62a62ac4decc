"""Which nodes are well enough to train: found before they do, by trials of their own and in pairs.

`checkup` is the course that the manager takes: who is checked when. `examination` is one check with its rounds, `check`
plans them (`pairing`) and keeps what they show (`evidence`, `own`, `network`); `diagnosis` says who is faulty or slow.
`probes` puts together what the processes of one node have found.
"""
