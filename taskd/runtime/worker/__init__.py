"""A rank's own process, beside the training."""
