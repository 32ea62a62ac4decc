"""Values of an unfinished step in torch's wrappers and schedules. They are dropped, so the step can be done again."""
