"""Reading of a job's own records: offline, by the command line."""
