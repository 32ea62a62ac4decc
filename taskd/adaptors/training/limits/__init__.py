"""What of a training cannot be recovered in place, or not exactly: found, told, refused."""
