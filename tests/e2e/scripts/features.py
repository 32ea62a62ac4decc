"""A training with one feature of torch that stands in the way of a recovery in place, or might."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

FEATURE = PLAN["feature"]


class Trainer:
    """A trainer that makes its wrapper inside, as libraries do."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.model: nn.Module = self.network if FEATURE in ("remade", "kept") else self.wrap()
        parameters = self.model.parameters()
        if FEATURE == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=1e-2)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=1e-2)
        part = nn.Linear(1, 1) if FEATURE == "uncovered" else self.network
        self.state = taskd.TrainState(seed=1, model=part, optimizer=self.optimizer, backup_every=0)

    def wrap(self) -> nn.Module:
        if FEATURE == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.network)
            return self.network
        if FEATURE == "elsewhere":  # a script that takes another path when a former process has left a file
            group, started = dist.new_group(), FOLDER / "started"
            elsewhere = DistributedDataParallel(self.network, process_group=None if started.exists() else group)
            dist.barrier()
            started.touch()
            return elsewhere
        if FEATURE == "fsdp1_around":
            from torch.distributed.fsdp import FullyShardedDataParallel

            return FullyShardedDataParallel(self.network, device_id=torch.device("cpu"), use_orig_params=True)
        if FEATURE == "remote_calls":
            from torch.distributed import rpc

            rpc.init_rpc(f"worker{dist.get_rank()}", rank=dist.get_rank(), world_size=2)
        model = DistributedDataParallel(self.network, static_graph=FEATURE == "static_graph")
        if FEATURE == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

            model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
        if FEATURE == "group_hook":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
        if FEATURE == "overlapped":
            model._register_fused_optim(torch.optim.SGD, lr=1e-2)
        if FEATURE == "averaged":
            from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

            self.averager = PeriodicModelAverager(period=2)
        return model

    def train(self) -> None:
        if FEATURE == "remade" or (FEATURE == "kept" and self.model is self.network):
            self.model = self.wrap()
        while self.state.step < PLAN["steps"]:
            reach(self.state.step + 1, "begin")
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 8)).square().mean().backward()
            self.optimizer.step()
            if FEATURE == "averaged":
                self.averager.average_parameters(self.model.parameters())
            self.state.commit()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer()
    taskd.resilient(trainer.state)(trainer.train)()
    tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in trainer.network.parameters()]
    weights = [tensor.detach().numpy().tobytes().hex() for tensor in tensors]
    note(f"result-{rank()}", json.dumps({"weights": weights, "step": trainer.state.step}))
    dist.barrier()
    os._exit(0)  # torch alone now and then aborts in a process that ends with its groups


main()
