"""Manager of a job of one node, started as the seed does: `manager.py RANKS`. All else comes from the environment."""

import sys

from taskd.api import init_taskd_manager, start_taskd_manager

if __name__ == "__main__":
    if not init_taskd_manager({"job_id": None, "node_nums": 1, "proc_per_node": int(sys.argv[1])}):
        sys.exit("the manager cannot be configured")
    if not start_taskd_manager():
        sys.exit("the manager cannot be started")
