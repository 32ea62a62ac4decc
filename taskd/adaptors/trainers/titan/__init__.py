"""torchtitan: its trainer class, whose loop runs inside one resilient function."""
