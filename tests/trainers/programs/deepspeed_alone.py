"""One process with an engine of each stage of ZeRO: its state taken and put back, and steps broken off and done again.

Prints a line for each stage: what was not as in a training that nothing has disturbed, or that all was.
"""

import copy
import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")

import deepspeed
import torch

import taskd.deepspeed
from taskd.adaptors.training.sharding.own_state import own_state

PLACES = ("forward", "backward", "between", "norm", "optimizer")


class BrokenOffError(RuntimeError):
    pass


def engine_of(stage: int, more: dict[str, object]):
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 8}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 3000, "stage3_param_persistence_threshold": 100},
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": stage == 2,
        "steps_per_print": 10_000,
        **more,
    }
    return deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)[0]


def known(part: object) -> Any:
    return own_state(part)


class Training:
    def __init__(self, stage: int, more: dict[str, object]) -> None:
        self.engine = engine_of(stage, more)
        self.state = taskd.deepspeed.state(self.engine)
        self.step_part = self.state.optimizer
        self.own, self.of_module = known(self.step_part), known(self.engine.module)
        self.deadly = ""
        self.engine.basic_optimizer.register_step_post_hook(lambda *_: self.at("optimizer"))
        self.step_part.register_step_pre_hook(lambda *_: self.at("norm"))
        list(self.engine.module.modules())[3].register_forward_hook(lambda *_: self.at("forward"))
        self.own.mark()

    def at(self, place: str) -> None:
        if place == self.deadly:
            self.deadly = ""
            raise BrokenOffError(place)

    def step(self, number: int) -> float:
        loss = torch.zeros(())
        for micro in range(2):
            draw = torch.Generator().manual_seed(10 * number + micro)
            rows, kinds = torch.randn(4, 32, generator=draw), torch.randint(0, 10, (4,), generator=draw)
            dtype = next(self.engine.module.parameters()).dtype
            output = self.engine(rows.to(dtype))
            if micro:
                output.register_hook(lambda _: self.at("backward"))
            loss = torch.nn.functional.cross_entropy(output.float(), kinds)
            self.engine.backward(loss)
            self.at("between")
            self.engine.step()
        self.own.mark()
        return loss.item()

    def taken(self):
        return copy.deepcopy((self.own.state(), self.of_module.state()))

    def put(self, taken) -> None:
        self.own.drop()
        self.own.load(copy.deepcopy(taken[0]))
        self.of_module.load(copy.deepcopy(taken[1]))
        self.own.complete()


def wrong(stage: int, more: dict[str, object]) -> str:
    calm = Training(stage, more)
    losses = [calm.step(number) for number in range(8)]
    broken = Training(stage, more)
    broken.step(0)
    for number, place in enumerate(PLACES, 1):
        before = broken.taken()
        broken.deadly = place
        try:
            broken.step(number)
        except BrokenOffError:
            pass
        else:
            return f"was not broken off in {place}"
        if place == "optimizer":
            broken.put(before)
        else:
            broken.own.drop()
            broken.own.complete()
        if (loss := broken.step(number)) != losses[number]:
            return f"step {number}, broken off in {place}: {loss}, undisturbed {losses[number]}"
    other = Training(stage, more)
    other.put(broken.taken())
    for training in (broken, other):
        found = [training.step(number) for number in (6, 7)]
        if found != losses[6:]:
            return f"goes on with {found}, undisturbed {losses[6:]}"
        if training.engine.global_steps != 8 or training.engine.micro_steps != 16:
            return f"counts {training.engine.global_steps} steps and {training.engine.micro_steps} micro-steps"
        if training.engine.get_lr() != calm.engine.get_lr():
            return "has another learning rate"
    return ""


deepspeed.init_distributed("gloo", distributed_port=int(os.environ.get("PORT", "29511")))
for stage in range(4):
    print(f"stage {stage}: {wrong(stage, {}) or 'as undisturbed'}", flush=True)
for stage in (2, 3):
    print(f"stage {stage} in bf16: {wrong(stage, {'bf16': {'enabled': True}}) or 'as undisturbed'}", flush=True)
