"""What a rehearsal runs in: a copy of the working directory, and torchruns that are ended whatever happens."""
