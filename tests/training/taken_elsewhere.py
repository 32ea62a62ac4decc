"""A second module of a script, with a variable of the same name as one in the script."""

both = 2


def count() -> int:
    """Use the variable."""
    return both
