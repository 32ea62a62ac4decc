"""What the kernel says of processes, threads and cgroups."""
