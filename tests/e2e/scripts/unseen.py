"""A training that records the appearance of its libraries' functions, and the lines of its warnings and errors.

With `"plain": true` in the plan it runs without taskd: its record is then the expected one.
"""

import functools
import inspect
import json
import os
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed import c10d_logger, device_mesh, distributed_c10d, rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.utils import file_baton
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader
from torch.utils.data._utils import fetch

from tests.e2e.scripts.points import PLAN, note, rank, reach

LEVELS, STEPS = range(1, 9), 7
MODULES = (dist, distributed_c10d, c10d_logger, rendezvous, device_mesh, torch.autograd, dataloader, fetch, file_baton)
CLASSES = (DistributedDataParallel, DataLoader, dataloader._BaseDataLoaderIter, nn.Module, torch.optim.SGD)
NO_LIST: Any = 7
OWN = ("taskd", "tests", "sitecustomize", "__main__", "__mp_main__")
seen: dict[str, Any] = {}
warned: list[Any] = []


def show(message: Any, category: type, file: str, line: int, *_: Any) -> None:
    """Record a warning. Lines of torch are left out, since they differ where it has two ways to do the same."""
    warned.append((os.path.basename(file), line if file == __file__ else 0, category.__name__, str(message)[:80]))


def warn_at_each_level(where: str) -> None:
    """Warn, once for each place, in the name of each of the functions outside of the caller. Keep their names."""
    frame: types.FrameType | None = sys._getframe(1)
    names = []
    while frame is not None and frame.f_code.co_name not in ("train", "<module>"):
        names.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}")
        frame = frame.f_back
    seen.setdefault("stack of " + where, names)
    for level in LEVELS[: len(names) + 1]:
        warnings.warn(f"{where} {level}", stacklevel=level + 1)


def fails(where: str, call: Callable[[], object]) -> None:
    """Keep the frames of the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        frames = traceback.extract_tb(error.__traceback__)[1:]
        seen["error of " + where] = [f"{os.path.basename(one.filename)}:{one.name}" for one in frames]
        seen["text of " + where] = re.sub("0x[0-9a-f]+", "", repr(error))


def looks(value: Any) -> list[str]:
    """Return the properties that a program can read of a function."""
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError) as error:
        signature = type(error).__name__
    names = [str(getattr(value, name, None)) for name in ("__name__", "__qualname__", "__module__", "__doc__")]
    kinds = [str(test(value)) for test in (inspect.isfunction, inspect.isroutine, callable)]
    names = [re.sub("0x[0-9a-f]+", "", name) for name in names]
    return [
        signature,
        *names,
        *kinds,
        str(getattr(getattr(inspect.unwrap(value), "__code__", None), "co_filename", "")),
    ]


def all_looks() -> dict[str, list[str]]:
    """Return the properties of everything callable in the modules and classes that have a seam."""
    return {
        f"{owner.__name__}.{name}": looks(value)
        for owner in (*MODULES, *CLASSES)
        for name, value in vars(owner).items()
        if callable(value)
    }


def is_ours(value: Any) -> bool:
    """Return whether a call of this runs a function of taskd's in a frame of its own."""
    while isinstance(value, functools.partial | types.MethodType):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    if not callable(value) or type(value).__name__ == "Frameless":
        return False
    code, module = getattr(value, "__code__", None), sys.modules.get(str(type(value).__module__))
    file = code.co_filename if isinstance(code, types.CodeType) else getattr(module, "__file__", None)
    return "/taskd/" in str(file) and "/tests/" not in str(file)


def frames_of_ours(*objects: Any) -> Iterator[str]:
    """Yield names in other libraries, and of these objects, that refer to a function of taskd's with a frame."""
    for module in list(sys.modules.values()):
        name = str(getattr(module, "__name__", ""))
        if name.partition(".")[0] in OWN or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if is_ours(value):
                yield f"{name}.{key}"
            if isinstance(value, type) and value.__module__ == name:
                yield from (f"{name}.{key}.{one}" for one in of_class(value))
    for one in objects:
        if not type(one).__module__.startswith("taskd"):
            yield from (f"{type(one).__name__} object: its {key}" for key, value in vars(one).items() if is_ours(value))
        for kind in type(one).__mro__:
            if not kind.__module__.startswith("taskd"):
                yield from (f"{type(one).__name__} object: its class's {key}" for key in of_class(kind))


def of_class(kind: type) -> list[str]:
    """Return such names of a class. `__new__` and properties return before any further call, so they are left out."""
    return [key for key, value in list(vars(kind).items()) if key != "__new__" and is_ours(value)]


class Rows(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        warn_at_each_level("a dataset")
        return torch.full((4,), float(index))


class Longer(IterableDataset):
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Warns(Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        warn_at_each_level("a backward pass")
        if seen.get("fail") == "backward":
            raise ValueError("in a backward pass")
        return given


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        warnings.warn("a forward pass", stacklevel=2)
        if seen.get("fail") == "forward":
            raise ValueError("in a forward pass")
        out: torch.Tensor = Warns.apply(self.line(rows))
        return out


def keep(name: str) -> None:
    """Write the record so far."""
    seen["warned"] = sorted(warned)
    note(f"seen-{name}-{rank()}-{'plain' if PLAN.get('plain') else 'taskd'}", json.dumps(seen))


warnings.showwarning = show  # type: ignore[assignment]
dist.init_process_group("gloo")
torch.manual_seed(1)
for _ in range(2):
    model = DistributedDataParallel(Net(), check_reduction=True)  # it warns that this is deprecated
model = DistributedDataParallel(Net(), check_reduction=True)
seen["looks in the set-up"] = all_looks()
fails("a wrapper", lambda: DistributedDataParallel(3))
fails("a group", lambda: dist.new_group([7]))
fails("a collective", lambda: dist.all_reduce(torch.ones(1), op=7))
fails("another group", lambda: dist.init_process_group("gloo"))
dist.all_reduce(torch.ones(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader: Any = DataLoader(Rows(), batch_size=2)
longer: Any = DataLoader(Longer(), batch_size=None)
state: Any = None
if not PLAN.get("plain"):
    import taskd

    state = taskd.TrainState(model=model, optimizer=optimizer, data={"loader": loader, "longer": longer})
keep("set-up")


def train() -> None:
    batches = iter(loader)
    for step in range(state.step if state else 0, STEPS):
        seen["step"] = step
        loss = model(next(batches)).sum()
        loss.backward()
        reach(step, "backward")
        if step == STEPS - 1:
            look_closely(batches)
        optimizer.step()
        optimizer.zero_grad()
        if state:
            state.commit()


def look_closely(batches: Any) -> None:
    seen["looks in the training"] = all_looks()
    for _ in longer:
        pass
    for where in ("forward", "backward"):
        seen["fail"] = where
        fails(f"a {where} pass", lambda: model(torch.ones(1, 4)).sum().backward())
    seen["fail"] = ""
    fails("a batch of messages in the training", lambda: dist.batch_isend_irecv([NO_LIST]))
    if state:
        kept = (model, optimizer, loader, batches, *model.modules())
        warnings.showwarning = lambda *_, **__: None  # a read of a module's names warns of old ones
        seen["ours"] = sorted(set(frames_of_ours(*kept)))
        warnings.showwarning = show  # type: ignore[assignment]


(taskd.resilient(state)(train) if state else train)()
keep("end")
dist.destroy_process_group()
