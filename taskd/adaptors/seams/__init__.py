"""taskd's expectations of torch: one table, and the comparison of an installed torch with it.

`launcher` has the needs of torchrun's process, `worker` those of each rank. `seam` defines how one line is compared.
"""
