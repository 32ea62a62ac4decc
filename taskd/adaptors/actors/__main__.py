"""`python -m taskd.adaptors.actors`: the agent of one rank. Started by `attach`."""

import sys

from taskd.adaptors.actors.side import main

sys.exit(main(sys.argv[1:]))
