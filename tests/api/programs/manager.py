"""A manager.py in the seed's form: `manager.py [KEY]`. KEY stands in place of `proc_per_node`."""

import os
import sys

from taskd.api import init_taskd_manager, start_taskd_manager

job_id = os.getenv("MINDX_TASK_ID")
node_nums = 1
proc_per_node = 4
key = sys.argv[1] if len(sys.argv) > 1 else "proc_per_node"
print(init_taskd_manager({"job_id": job_id, "node_nums": node_nums, key: proc_per_node}))
print(start_taskd_manager())
