"""Another module of a script's, with a variable of a name that the script has, too."""

both = 2


def count() -> int:
    """Use it."""
    return both
