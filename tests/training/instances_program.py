"""Watching of classes, in a process of its own, because a watched class stays watched."""

import copy
import gc
import inspect
import pickle
import sys

import torch
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.optim.swa_utils import AveragedModel

from taskd.adaptors.groups import instances

KINDS = (torch.optim.Optimizer, LRScheduler, AveragedModel, torch.amp.GradScaler)


class Apart(torch.optim.Optimizer):
    """Optimizer like accelerate's: its constructor calls no other one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner


search = gc.get_objects


def refuse(*_: object) -> list[object]:
    """Fail if the heap is searched. Only the tests' startup may do so, once, as torch._dynamo is imported."""
    if sys._getframe(1).f_globals["__name__"] != "taskd_tests_startup":
        raise AssertionError("the heap is searched")
    return search()


signatures = [inspect.signature(kind) for kind in (*KINDS, torch.optim.AdamW)]
instances.watch()
instances.watch()
gc.get_objects = refuse  # type: ignore[assignment]
assert [inspect.signature(kind) for kind in (*KINDS, torch.optim.AdamW)] == signatures

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
made = [optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), copy.copy(optimizer)]
made.append(Apart(optimizer))
assert list(map(id, instances.instances(torch.optim.Optimizer))) == list(map(id, made))
scheduler, average, scaler = StepLR(optimizer, 1), AveragedModel(model), torch.amp.GradScaler("cpu")
assert instances.instances(LRScheduler, AveragedModel, torch.amp.GradScaler) == [scheduler, average, scaler]
del made[1:], scheduler
gc.collect()
assert instances.instances(torch.optim.Optimizer, LRScheduler) == [optimizer]

compiled = torch.compile(model)
assert instances.instances(sys.modules["torch._dynamo.eval_frame"].OptimizedModule) == [compiled]
assert "torch.distributed.algorithms.model_averaging.averagers" not in sys.modules
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager, PeriodicModelAverager  # noqa: E402

averager = PeriodicModelAverager(period=2, process_group=object())  # type: ignore[arg-type]
assert instances.instances(ModelAverager) == [averager]
