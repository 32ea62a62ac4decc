"""torchrun with the patch and a scripted runtime at the port: `torchrun_with_fake.py FOLDER MODE torchrun…`"""

import sys

import taskd.python.adaptor.patch  # noqa: F401
from taskd.adaptors.torchrun import agent
from tests.torchrun.scripted import ScriptedRuntime

folder, mode = sys.argv[1:3]
runtime = ScriptedRuntime(folder, mode)
vars(agent)["make_node_runtime"] = runtime.of
sys.argv[1:3] = []

from torch.distributed.run import main  # noqa: E402

main()
