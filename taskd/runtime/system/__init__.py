"""The kernel's facts about processes, threads and cgroups."""
