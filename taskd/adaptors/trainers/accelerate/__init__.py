"""accelerate: a loop of the user's own around the objects that `Accelerator.prepare` has made."""
