"""`python -m taskd …` is `taskd …`."""

import sys

from taskd.cli import main

if __name__ == "__main__":
    sys.exit(main())
