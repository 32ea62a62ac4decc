"""Training data of a rank: the exact place in its data loaders, its epochs, its share of the global batch."""
