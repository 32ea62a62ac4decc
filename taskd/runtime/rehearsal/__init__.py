"""Surroundings of a rehearsal: a copy of the working directory, and torchruns that are ended whatever happens."""
