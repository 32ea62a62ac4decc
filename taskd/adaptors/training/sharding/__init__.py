"""States divided among ranks: shards, partitions, replica sets, and wrappers in a new world."""
