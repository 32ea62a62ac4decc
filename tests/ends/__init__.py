"""The end of jobs. These tests compare times, so they run in the lane with the machine first (`scripts/test.sh`)."""
