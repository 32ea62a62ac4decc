"""What a rehearsal decides: which rank dies when, what differs between two runs, and which line is why."""
