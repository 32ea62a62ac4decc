"""What a rehearsal (`taskd run --rehearse`) has in each rank: an observer, which the script knows nothing of."""
