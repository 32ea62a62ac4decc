"""Trainers that people use, killed at inconvenient moments. See `scenes`."""
