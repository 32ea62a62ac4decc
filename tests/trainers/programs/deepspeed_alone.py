"""One process with an engine of each stage of ZeRO: its state taken and put back, and steps broken off and done again.

Prints a line for each stage: the deviation from an undisturbed training, or that there is none.
"""

import copy
import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")

import deepspeed
import torch

import taskd.deepspeed
from taskd.adaptors.trainers.deepspeed.loaders import place_of
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
            if self.engine.managed_gradient_accumulation() or micro:
                self.engine.step()
        self.own.mark()
        return loss.item()

    def taken(self):
        return copy.deepcopy((self.own.state(), self.of_module.state()))

    def put(self, taken) -> None:
        self.own.drop_step()
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
            broken.own.drop_step()
            broken.own.complete()
        if (loss := broken.step(number)) != losses[number]:
            return f"step {number}, broken off in {place}: {loss}, undisturbed {losses[number]}"
    other = Training(stage, more)
    other.put(broken.taken())
    for training in (broken, other):
        found = [training.step(number) for number in (6, 7)]
        if found != losses[6:]:
            return f"goes on with {found}, undisturbed {losses[6:]}"
        for name in ("global_steps", "micro_steps", "global_samples", "skipped_steps"):
            if getattr(training.engine, name) != getattr(calm.engine, name):
                return f"has {getattr(training.engine, name)} {name}, undisturbed {getattr(calm.engine, name)}"
        if training.engine.get_lr() != calm.engine.get_lr():
            return "has another learning rate"
        if getattr(training.engine.optimizer, "cur_scale", 0) != getattr(calm.engine.optimizer, "cur_scale", 0):
            return "has another loss scale"
    return ""


def left_as_it_is() -> str:
    """Check that an engine with an optimizer of an unknown kind is left as it is."""
    engine = engine_of(1, {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}})
    state = taskd.deepspeed.state(engine)
    if own_state(engine.module) is not None or state.optimizer is not engine.basic_optimizer:
        return f"is taken for known: {type(engine.optimizer).__name__}"
    steps = []
    for _ in range(4):
        engine.backward(engine(torch.randn(4, 32, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
        state.commit()
        steps.append(state.step)
    return "" if steps == [0, 1, 1, 2] else f"counts {steps}"


def loader_wrong() -> str:
    """Check that a loader of DeepSpeed's gives the same when its position is kept, and goes on from there."""
    engine = engine_of(0, {})
    rows = torch.utils.data.TensorDataset(torch.arange(20.0))

    def seen(*, kept: bool) -> list[float]:
        torch.manual_seed(5)
        loader = engine.deepspeed_io(rows, num_local_io_workers=0)
        place = place_of(loader) if kept else None
        found = []
        for _ in range(2):
            for number, (batch,) in enumerate(loader):
                found += [*batch.tolist(), torch.rand(()).item()]
                if place is not None and number == 2:
                    place.load_state_dict(
                        place.state_dict()
                    )  # as after a recovery: the next iterator goes on behind it
                    break
            if place is not None:
                for (batch,) in loader:
                    found += [*batch.tolist(), torch.rand(()).item()]
        return found

    plain, kept = seen(kept=False), seen(kept=True)
    return "" if plain == kept else f"gives {kept}, without a place {plain}"


deepspeed.init_distributed("gloo", distributed_port=int(os.environ.get("PORT", "29511")))
deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # this processor only lacks the speed
FP16 = {"enabled": True, "initial_scale_power": 5, "loss_scale_window": 2, "hysteresis": 1}
CASES: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (0, "", {}),
    (1, "", {}),
    (2, "", {}),
    (3, "", {}),
    (2, " in bf16", {"bf16": {"enabled": True}}),
    (3, " in bf16", {"bf16": {"enabled": True}}),
    (1, " in fp16", {"fp16": FP16}),
    (3, " in fp16", {"fp16": FP16}),
    (2, " overlapped", {"zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 3000}}),
    (
        2,
        " scattered",
        {"zero_optimization": {"stage": 2, "contiguous_gradients": False, "round_robin_gradients": True}},
    ),
    (3, " in sub-groups", {"zero_optimization": {"stage": 3, "sub_group_size": 1500, "reduce_bucket_size": 3000}}),
    (2, " unmanaged", {"managed_gradient_accumulation": False}),
)
for stage, name, more in CASES:
    print(f"stage {stage}{name}: {wrong(stage, more) or 'as undisturbed'}", flush=True)
print(f"stage 1 with BF16_Optimizer: {left_as_it_is() or 'as undisturbed'}", flush=True)
print(f"stage 0 with a loader: {loader_wrong() or 'as undisturbed'}", flush=True)
