"""Entry point of `python -m taskd …`, which is the same as `taskd …`."""

import sys

from taskd.cli import main

if __name__ == "__main__":
    sys.exit(main())
