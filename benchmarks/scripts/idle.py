"""A rank that does nothing, until its job is ended: the nodes of a job that is only to be checked."""

import time

while True:
    time.sleep(60)
