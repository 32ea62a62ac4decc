"""Trainings on accelerators, killed: what only a device can show."""
