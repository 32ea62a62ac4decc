"""Results of the collectives of a script's set-up in the first start, kept for the process that takes the rank over.

A newcomer sets itself up alone, so its collectives would return its own values: another run id, another seed, another
number of steps. It receives its predecessor's results instead.

Rules:

1. A rank records the results of its outermost collectives, in their order, until it enters its resilient function. It
   writes them to memory that the agent keeps. Nothing is wrapped afterwards. The agent receives the record's digest and
   hands it to a newcomer. No byte is unpickled of a record with another digest, whoever has made it.
2. Small results are kept whole, up to `ONE_BYTES` each and `ALL_BYTES` together. Larger and asynchronous results, and
   those between two ranks alone, are not kept. A newcomer is then refused, with the line of the call. The exception is
   a part of the training state, which a donor sends anyway.
3. A newcomer's calls are compared with the record, one by one: name, types, shapes, ranks, group. If they differ, or
   there is no record (another node), its set-up fails, and all processes start anew.
4. A script may train without a resilient function. So the recording ends after `MOST_CALLS`, or soon after the first
   optimizer step. A newcomer is refused if the function is entered all the same.
5. DDP's own collectives, barriers, and groups that are not of torchrun's world are not covered.
"""

import hashlib
import hmac
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from taskd.adaptors.groups.collectives import RESULTS, Call, Wrapped
from taskd.adaptors.groups.sites import script_line
from taskd.runtime.folders.nameless import erase_record, read_record, write_record
from taskd.runtime.worker.frameless import ORIGINAL, Steps
from taskd.wire import text

_log = logging.getLogger(__name__)
ONE_BYTES: Final = 64 * 1024 + 1024
"""Most bytes of one kept result: a tensor of 64 KiB, with the bytes that pickle adds to it."""
ALL_BYTES: Final = 4 * 1024 * 1024
MOST_CALLS: Final = 4096
MOST_CALLS_AFTER_A_STEP: Final = 64


@dataclass(frozen=True)
class Result:
    """One collective of the set-up; `data` is None if its result was not kept."""

    signature: tuple[object, ...]
    line: str
    data: bytes | None


@dataclass(frozen=True)
class Unkept:
    """A result that no newcomer can be given: the line of the call, and the memory that it filled."""

    text: str
    storages: frozenset[int]


class Recording:
    """A recording from now on, for the memory at `path`. The record of an earlier start is removed from there.

    `keep` receives the record's digest, for the agent, when it is written.
    """

    def __init__(self, path: Path, is_ours: Callable[[Any], bool], keep: Callable[[str], None]) -> None:
        self._path = path
        self._is_ours = is_ours
        self._keep = keep
        self._results: list[Result] = []
        self._unkept: list[Unkept] = []
        self._size_bytes = 0
        self._left = MOST_CALLS
        with suppress(OSError):
            erase_record(path)
        self._wrapped = Wrapped(self._call)
        self._steps = register_optimizer_step_pre_hook(self._stepping)

    def end(self, facts: Mapping[str, str] | None = None) -> list[Unkept]:
        """Write the record, with these facts of the set-up beside it; return the results that are not in it."""
        self._wrapped.remove()
        self._steps.remove()
        try:
            content = pickle.dumps(([(r.signature, r.line, r.data) for r in self._results], dict(facts or {})))
            write_record(self._path, content)
        except OSError as error:
            _log.warning("the results of the set-up's collectives are not kept: %s", error)
        else:
            self._keep(_digest(content))
        self._results.clear()
        return self._unkept

    def _stepping(self, *_: Any) -> None:
        self._left = min(self._left, MOST_CALLS_AFTER_A_STEP)

    def _call(self, call: Call) -> Steps:
        returned = yield ORIGINAL
        if not self._is_ours(call.arguments.get("group")):
            return returned
        line = script_line()
        self._left -= 1
        if self._left < 0:
            self._wrapped.remove()
            self._results.clear()
            self._unkept = [Unkept(f"{call.name}, at {line}, gives: too many collectives come before it", frozenset())]
            return returned
        if call.name not in RESULTS:
            self._unkept.append(Unkept(f"{call.name} in the set-up, at {line}, is between two ranks", frozenset()))
            return returned
        data, why = (None, "is asynchronous") if call.later else _packed(call.result, ALL_BYTES - self._size_bytes)
        if data is None:
            self._unkept.append(Unkept(f"{call.name} in the set-up, at {line}, {why}", storages(_flat(call.result))))
        else:
            self._size_bytes += len(data)
        self._results.append(Result(call.signature(), line, data))
        return returned


class Replay:
    """Answers to the collectives of a newcomer's set-up from now on, from the memory at `path` if it has this digest.

    `facts`: those of its predecessor's set-up; empty if they are not known.
    """

    def __init__(self, path: Path, is_ours: Callable[[Any], bool], digest: str) -> None:
        self._is_ours = is_ours
        self._results, self.facts = _read(path, digest)
        self._at = 0
        self._wrapped = Wrapped(self._call)

    def end(self) -> None:
        """End the replay, as the resilient function is entered.

        Raises:
            RuntimeError: the first start had made more collectives by then.
        """
        self._wrapped.remove()
        if self._results is not None and self._at < len(self._results):
            missing = self._results[self._at]
            raise RuntimeError(
                f"this new process has made {self._at} collectives in its set-up, and its predecessor "
                f"{len(self._results)}: {missing.signature[0]} at {missing.line} is missing; all processes start anew"
            )

    def _call(self, call: Call) -> Steps:
        if not self._is_ours(call.arguments.get("group")):
            return (yield ORIGINAL)
        line = script_line()
        if call.name not in RESULTS:
            raise RuntimeError(f"{call.name} in the set-up, at {line}: a new process has nobody at the other end yet")
        if self._results is None:
            raise RuntimeError(
                f"{call.name} in the set-up, at {line}: what it gave is not known on this node, where the rank is new; "
                "all processes start anew"
            )
        known = self._results[self._at] if self._at < len(self._results) else None
        if known is None or known.signature != call.signature():
            first = "no further one" if known is None else f"{known.signature} at {known.line}"
            raise RuntimeError(
                f"collective {self._at + 1} of this new process's set-up is {call.signature()} at {line}; in the first "
                f"start it was {first}. A set-up that depends on what has changed since (a newer snapshot, the time) "
                "cannot be repeated alone: all processes start anew"
            )
        returned = yield ORIGINAL
        self._at += 1  # counted after the call: a call that torch refuses was not recorded
        if known.data is not None:
            _fill(call.result, pickle.loads(known.data))
        return returned


def _read(path: Path, digest: str) -> tuple[list[Result] | None, dict[str, str]]:
    """Return the results and the facts; None if there is no readable record with the digest that the agent has."""
    try:
        content = read_record(path)
        if content is None:
            return None, {}
        if not digest or not hmac.compare_digest(_digest(content), digest):
            raise ValueError("it is not the record that this rank's first process has written")
        results, facts = pickle.loads(content)
        return [Result(*fields) for fields in results], facts
    except Exception as error:  # noqa: BLE001 - a class that the script has changed meanwhile may raise anything
        _log.warning(
            "%s cannot be read (%s): what the set-up's collectives gave is not known",
            path,
            text.line(str(error) or type(error).__name__),
        )
        return None, {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _packed(result: Any, room_bytes: int) -> tuple[bytes | None, str]:
    """Return the result as bytes, or None and the reason why it is not kept."""
    size_bytes = sum(tensor.nbytes for tensor in _flat(result) if isinstance(tensor, torch.Tensor))
    data = b""
    if any(isinstance(tensor, torch.Tensor) and _is_captured(tensor) for tensor in _flat(result)):
        return None, "is part of a graph that is being captured"
    if size_bytes <= ONE_BYTES:
        try:
            data = pickle.dumps(_copied(result))
        except Exception as error:  # noqa: BLE001 - whatever the script's own objects raise
            return None, f"gives what cannot be pickled ({error!r})"
    size_bytes = max(size_bytes, len(data))
    if size_bytes > min(ONE_BYTES, room_bytes):
        return None, f"gives {size_bytes} bytes, which are too many to keep"
    return data, ""


def _is_captured(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _copied(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.detach().cpu().clone()
    return [_copied(item) for item in result] if isinstance(result, list) else result


def _fill(target: Any, value: Any) -> None:
    """Copy a kept result into this process's own target."""
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.detach().copy_(value)
    elif isinstance(target, list):
        for index, item in enumerate(value):
            if isinstance(target[index], torch.Tensor) and isinstance(item, torch.Tensor):
                _fill(target[index], item)
            else:
                target[index] = item


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list) else [result]


def storages(tensors: Iterable[Any]) -> frozenset[int]:
    """Return the address of each tensor's memory; other objects, and tensors without memory of their own, have none."""
    found = set()
    for tensor in tensors:
        with suppress(RuntimeError, AttributeError, NotImplementedError):  # sharded and fake tensors
            found.add(tensor.untyped_storage().data_ptr())
    return frozenset(found)
