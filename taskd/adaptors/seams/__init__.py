"""What taskd relies on in torch: one table, and how an installed torch is compared with it.

`launcher` is what torchrun's process needs, `worker` what each rank needs. `seam` says how one line is compared.
"""
