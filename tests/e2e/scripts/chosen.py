"""A library that settles at its import what it runs on, as torchtitan does with the device."""

import os

DEVICE = os.environ.get("CHOSEN_DEVICE", "none")
