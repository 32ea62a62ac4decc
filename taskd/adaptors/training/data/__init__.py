"""What a rank trains from: the exact place in its data loaders, its epochs, its share of the global batch."""
