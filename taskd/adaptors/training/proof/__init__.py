"""What a job finds out by itself, in its first steps: whether it can go on exactly after a fault."""
