"""Prints taskd's own options as a script finds them: their variables, and its own arguments."""

import json
import os
import sys

names = ("TASKD_NODE_CHECK", "TASKD_EXCLUDE_STRAGGLER")
print("seen", json.dumps([[os.environ.get(name) for name in names], sys.argv[1:]]))
