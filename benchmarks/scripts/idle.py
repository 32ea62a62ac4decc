"""A rank that does nothing until its job is ended. Its job exists only for checks of the nodes."""

import time

while True:
    time.sleep(60)
