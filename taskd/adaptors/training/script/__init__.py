"""What the user's script does around a step, read from its text and its stacks."""
