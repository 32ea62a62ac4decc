"""How jobs end. These tests compare times, and so run in the lane that has the machine first (`scripts/test.sh`)."""
