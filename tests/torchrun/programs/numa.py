"""torchrun on a machine that appears to torch as one with two GPUs, both at NUMA node 0."""

from torch.distributed import run
from torch.numa import binding

vars(binding).update(_get_gpu_count=lambda: 2, _get_numa_node_index_for_gpu_index=lambda *, gpu_index: 0)
run.main()
