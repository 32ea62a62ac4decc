"""Popular trainers, killed at inconvenient moments. See `scenes`."""
