"""What wrappers and schedules of torch hold of a step that is not done: dropped, so that it can be done again."""
