"""Flow of values from step to step through the script's own names, by definition and use."""
