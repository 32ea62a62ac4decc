"""Folders and files of this user alone."""
