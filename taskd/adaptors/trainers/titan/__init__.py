"""torchtitan: its trainer class, whose loop is done inside of one resilient function."""
