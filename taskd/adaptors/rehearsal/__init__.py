"""The part of a rehearsal (`taskd run --rehearse`) in each rank: an observer that is invisible to the script."""
