"""Trainings on accelerators that are killed: results that only a device can show."""
