"""What a job has written of itself, read again: offline, by the command line."""
