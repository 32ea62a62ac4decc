"""What a rehearsal decides: which rank dies when, what differs between two runs, and which line of the script is why."""
