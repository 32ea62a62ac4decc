"""Work of the user's script around a step, read from its text and its stacks."""
