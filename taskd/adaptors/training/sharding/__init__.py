"""States of which ranks have different parts: shards, partitions, replica sets, and wrappers in a new world."""
