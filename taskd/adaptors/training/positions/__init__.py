"""Where a rank stands in its random numbers and its data, kept step by step so that it outlives the process."""
