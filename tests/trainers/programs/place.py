"""Device and backend of a scene's program: the CPU, or with SCENE_DEVICE=cuda an accelerator.

Several ranks may share one accelerator. NCCL refuses that to ranks of one host, so each is a host of its own.
"""

import os

import torch

ON_CPU = os.environ.get("SCENE_DEVICE", "cpu") == "cpu"
BACKEND = "gloo" if ON_CPU else "nccl"
DEVICE = torch.device("cpu")
if not ON_CPU:
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = f"rank-{os.environ['RANK']}"
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(DEVICE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
