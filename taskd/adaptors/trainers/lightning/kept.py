"""All values of a fit that Lightning's trainer holds, as of the last commits, and the two state parts made from them.

Rules:

1. At each commit a picture is taken: counters, sums of logged values, metrics, the place in the batches. The attributes
   of callbacks and of the user's module are in it too. After a fault a survivor puts back the picture of the step that
   all return to. It does the work behind that step again.
2. A new process gets the same from two sides. Values that are equal on all ranks come from a peer (`CommonPart`). Its
   rank's own values come from shared memory (`OwnPart`): the former process has stored them there after each forward
   pass.
3. A step may be counted as the survivors had it, without their commit. Its picture is taken as it is counted.
4. An attribute of a callback is left as it is in a new process if its first value differs there.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch

from taskd.adaptors.trainers.lightning.attributes import Attributes, Taken, fill
from taskd.adaptors.trainers.lightning.encoding import decode, encode
from taskd.adaptors.trainers.lightning.library import Library
from taskd.adaptors.trainers.lightning.logged import MetricObjects, Shown, Sums
from taskd.adaptors.trainers.lightning.loops import Counts, LoopCounters

_log = logging.getLogger(__name__)
_MOST_BYTES: Final = 24 * 1024
"""Most bytes of one rank's own values, without the place in its batches."""
_SHORT: Final = 64
_OF_ALL: Final = ("should_stop", "accumulate_grad_batches")
_TRAINER: Final = (*_OF_ALL, "_last_val_time", "_train_start_time")
_CALLS: Final = "_current_fx_name"
"""Name of the hook that Lightning is calling: nothing that a new process should have."""
_MODULE: Final = (_CALLS, "forward")
_WATCHED: Final = "_compiled_call_impl"
"""Attribute at which taskd watches forward passes."""
_VARYING: Final = (int, float, str, bool, list, dict, set, tuple, torch.Tensor)


@dataclass
class Picture:
    """The values at one commit; `committed` is False before the first."""

    committed: bool
    counters: Counts
    sums: dict[str, Any]
    evaluated: dict[str, Any]
    metrics: dict[str, Any]
    shown: list[Any]
    trainer: Taken
    module: Taken
    callbacks: list[Taken]
    lines: list[int]
    files: int
    mark: Any
    batch: Any
    output: Any
    batch_idx: int
    batch_size: int | None


class Keeper:
    """The keeper of the trainer's values: it takes pictures and puts them back.

    Attributes:
        batch, output, batch_idx: those of the newest step, for the hooks at a batch's end.
        committed: True once a step was committed.
        lines, files: the training's writing outside of itself.
    """

    def __init__(self, trainer: Any, library: Library, lines: Any, files: Any) -> None:
        self._trainer = trainer
        self._module = module = trainer.lightning_module
        self.lines, self.files = lines, files
        self.batch: Any = None
        self.output: Any = None
        self.batch_idx = 0
        self.committed = self._told = False
        self._told_own: tuple[list[Any], bytes] = ([], b"")
        loop = trainer.fit_loop
        kinds = (library.module("loops.loop")._Loop, library.module("loops.progress")._BaseProgress)
        results = library.module("trainer.connectors.logger_connector.result")
        bare = library.module("").LightningModule()
        self._counters = LoopCounters(loop, kinds)
        self._sums = Sums(lambda: loop.epoch_loop._results, results)
        self._evaluated = Sums(lambda: loop.epoch_loop.val_loop._results, results)
        self._metrics = MetricObjects(module, results.Metric)
        self._shown = Shown(trainer._logger_connector)
        self._of_trainer = Attributes(trainer, names=_TRAINER)
        self._of_module = Attributes(module, left_out={*vars(bare), _WATCHED}.difference(_MODULE))
        shown_alone = library.module("callbacks").ProgressBar
        self._callbacks = [(one, Attributes(one)) for one in trainer.callbacks if not isinstance(one, shown_alone)]
        self._at_first: Taken = self._of_module.take()

    def take(self, *, committed: bool) -> Picture:
        """Take a picture of the present values."""
        self.committed = committed
        trainer, results = self._trainer, self._trainer.fit_loop.epoch_loop._results
        return Picture(
            committed,
            self._counters.take(),
            self._sums.take(),
            self._evaluated.take(),
            self._metrics.take(),
            self._shown.take(),
            self._of_trainer.take(),
            self._of_module.take(),
            [attributes.take() for _, attributes in self._callbacks],
            [*self.lines.counts],
            self.files.count,
            trainer.fit_loop._data_fetcher.taskd_mark(),
            self.batch,
            self.output,
            self.batch_idx,
            results.batch_size,
        )

    def put(self, picture: Picture) -> None:
        """Set all values back to those of a picture."""
        self.committed = picture.committed
        self._counters.put(picture.counters)
        self._sums.put(picture.sums)
        self._evaluated.put(picture.evaluated)
        self._metrics.put(picture.metrics)
        self._shown.put(picture.shown)
        self._of_trainer.put(picture.trainer)
        self._of_module.put(picture.module)
        for (_, attributes), taken in zip(self._callbacks, picture.callbacks, strict=True):
            attributes.put(taken)
        self.lines.counts[:] = picture.lines
        self.files.count = picture.files
        self._trainer.fit_loop._data_fetcher.taskd_return(picture.mark)
        self.batch, self.output, self.batch_idx = picture.batch, picture.output, picture.batch_idx
        self._under_way(picture.batch_size)

    # For another process.

    def common(self, picture: Picture) -> dict[str, Any]:
        """Return the values of a picture that are equal on all ranks."""
        own = zip(self._callbacks, picture.callbacks, strict=True)
        return {
            "committed": picture.committed,
            "counters": [list(values) for values in picture.counters],
            "sums": self._sums.describe(),
            "trainer": encode({name: value for name, value in picture.trainer.items() if name in _OF_ALL}),
            "callbacks": [[_name(one), attributes.changed(taken)] for (one, attributes), taken in own],
            "timers": [[_name(one), encode(one.state_dict())] for one, _ in self._callbacks if _is_timer(one)],
            "batch_idx": picture.batch_idx,
        }

    def put_common(self, common: Mapping[str, Any]) -> None:
        """Take over the common values of another process."""
        self.committed = common["committed"]
        device = self._module.device
        self._counters.put(common["counters"])
        self._sums.make(common["sums"], self._module, self._trainer.strategy.reduce)
        vars(self._trainer).update(decode(common["trainer"], device))
        for (one, attributes), (name, changed) in zip(self._callbacks, common["callbacks"], strict=False):
            for attribute, was, value in changed if name == _name(one) else ():
                if attributes.takes(attribute, was):
                    attributes.set(attribute, decode(value, device))
        timers = [one for one, _ in self._callbacks if _is_timer(one)]
        for one, (_, state) in zip(timers, common["timers"], strict=False):
            one.load_state_dict(decode(state, device))
        self.batch_idx = common["batch_idx"]

    def own(self, *, stands: bool = False) -> bytes:
        """Return this rank's own values, as they are now.

        `stands`: since the last call only attributes of the module may have changed.
        """
        trainer, module = self._trainer, self._of_own_module()
        if stands and module == self._told_own[0]:
            return self._told_own[1]
        loop = trainer.fit_loop
        found = [
            loop._data_fetcher.taskd_place(), self._sums.encode(), self._metrics.encode(),
            self._shown.encode(), self.lines.counts, self.files.count,
            self.lines.names() if self.lines.counts and trainer.is_global_zero else [],
            loop.epoch_loop._results.batch_size, module, self._output(),
        ]  # fmt: skip
        data = msgspec.msgpack.encode(found)
        if len(data) > _MOST_BYTES:
            self._tell_large(len(data))
            found[2], found[8], found[9] = [], [], None
            data = msgspec.msgpack.encode(found)
        self._told_own = module, data
        return data

    def put_own(self, data: bytes) -> list[Any]:
        """Take over the own values of this rank's former process; return its place in the batches."""
        device = self._module.device
        place, sums, metrics, shown, lines, files, names, size, module, output = msgspec.msgpack.decode(data)
        self._sums.decode(sums, device)
        self._metrics.decode(metrics, device)
        self._shown.decode(shown, device)
        self.lines.counts[: len(lines)] = lines
        self.files.count = files
        if self._trainer.is_global_zero:
            self.lines.go_on(names)
        own = vars(self._module)
        for name, value in module:
            own[name] = fill(own.get(name), decode(value, device))
        self.output = decode(output, device)
        self._under_way(size)
        return list(place)

    def _under_way(self, batch_size: int | None) -> None:
        results = self._trainer.fit_loop.epoch_loop._results
        results.batch, results.batch_size, results.dataloader_idx = self.batch, batch_size, None

    def _of_own_module(self) -> list[Any]:
        """Return the attributes of the user's module that vary."""
        found = []
        for name, value in self._of_module.seen():
            first = self._at_first.get(name)
            if (
                name == _CALLS
                or not isinstance(value, _VARYING)
                or (value is first and not isinstance(value, list | dict | set))
            ):
                continue
            if isinstance(value, list | dict | set | tuple):
                if len(value) > _SHORT and isinstance(first, type(value)) and len(first) == len(value):
                    continue
            elif not isinstance(value, torch.Tensor) and type(value) is type(first) and value == first:
                continue
            try:
                found.append([name, encode(value)])
            except TypeError:  # a part of it is of another kind
                continue
        return found

    def _output(self) -> Any:
        try:
            return encode(self.output)
        except TypeError:
            return None

    def _tell_large(self, size_bytes: int) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "what this rank alone has of its metrics and of the attributes of %s takes %d bytes, and %d have room: "
                "a process that takes the rank over begins them anew",
                type(self._module).__name__,
                size_bytes,
                _MOST_BYTES,
            )


def _name(callback: Any) -> str:
    return type(callback).__qualname__


def _is_timer(callback: Any) -> bool:
    return type(callback).__name__ == "Timer"
