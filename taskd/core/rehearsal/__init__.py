"""Decisions of a rehearsal: which rank dies when, how two runs differ, and which line is the reason."""
