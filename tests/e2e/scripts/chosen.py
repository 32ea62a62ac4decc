"""A library that chooses its device when it is imported, as torchtitan does."""

import os

DEVICE = os.environ.get("CHOSEN_DEVICE", "none")
