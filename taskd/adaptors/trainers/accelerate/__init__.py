"""accelerate: a loop of the user's own around what `Accelerator.prepare` has made."""
