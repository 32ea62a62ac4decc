"""Trust in a state: replicas compared, the first step after a restore checked, losses that are not finite detected."""
