"""State outside the state: values that changed between two walks, reach the training, and are in no part of the state.

Rules:

1. Tensors count if they resemble weights: several of one owner, with the shapes of parameters that are trained. Copies
   of weights as they were at a commit are no finding. Neither are tensors that are made anew (another object at the
   same path).
2. Numbers, lists of them and generators count only if the script's text shows that they reach the training
   (`influence`).
3. A value also counts if an early step sets it once, from its batch or loss, and later steps read it.
4. Attributes that a part of the state leaves out of its `state_dict()` are outside, too.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from taskd.adaptors.groups.sites import is_users_class
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.proof.influence import Influence
from taskd.adaptors.training.proof.names import ScriptFunction, plain_path
from taskd.adaptors.training.proof.roots import Entered, Held, variables_of
from taskd.adaptors.training.proof.texts import (
    ClassText,
    carried_at,
    first_line,
    follows_step,
    is_seeded,
    mixed_at,
    only_sets_epochs,
    readers_of,
    remembers,
    set_once,
    shuffled_at,
)
from taskd.adaptors.training.proof.walk import SeenKind, SeenValue
from taskd.adaptors.training.script.outside import functions_of

_GIVE_IT: Final = "Give it to TrainState, in replicated={…} or data={…}, with state_dict() and load_state_dict()"
_MOST_NAMED: Final = 8


@dataclasses.dataclass(frozen=True)
class OutsideState:
    """Value outside the state: its path, the number of others of its owner, and `file:line` ("" if unknown)."""

    path: str
    more: int
    line: str
    is_value: bool = False
    """True if it is a number or a generator that can be taken into the state.

    It cannot if a loader leads to it, or if the script reads a list that grows: the number may depend on that.
    """
    is_kept: bool = False
    """True if it was set once, by the first step that found it empty."""

    def matter(self, function_line: str) -> Matter:
        """Return the matter that is reported and refused."""
        more = f" (and {self.more} more of it)" if self.more else ""
        where = f"({self.line})" if self.line else f"(the training function: {function_line})"
        if self.is_kept:
            text = f"{self.path} is set by the first step that finds it empty {where}, and later steps read it"
            return Matter(f"{text}: a new process would set it from another step", f"{_GIVE_IT}.", no_rebuild=True)
        text = f"{self.path}{more} is changed by the training {where}, and the TrainState does not have it"
        return Matter(text, f"{_GIVE_IT}; or make it from state.step.", no_rebuild=True)

    @property
    def taken_in(self) -> str:
        """Message about a value that was taken into the state."""
        where = f" ({self.line})" if self.line else ""
        return (
            f"{self.path} is changed by the training{where}, and the TrainState does not have it: taskd keeps it with "
            "the state from now on. A new process gets a peer's, and a step that is done again begins with it. A "
            "checkpoint does not have it"
        )


class Judge:
    """Comparison of two walks.

    Args:
        entered: the training function as it is running now.
        held: the objects that the state has now.
        known: samples of the weights at moments before.
    """

    def __init__(self, entered: Entered, held: Held, known: frozenset[bytes]) -> None:
        self._held, self._known = held, known
        functions = [ScriptFunction(frame.f_code, _names(frame)) for frame in entered.frames]
        functions += [ScriptFunction(one.__code__, dict(one.__globals__)) for one in functions_of(entered.function)]
        self._functions = functions
        self._texts = [("", one.file, one.tree) for one in functions if one.tree is not None]
        self._influence: Influence | None = None
        self._methods: dict[type, list[tuple[str, str, Any]]] = {}
        self._set_once: dict[type, dict[str, str]] = {}

    def compare(
        self, before: Mapping[str, SeenValue], now: Mapping[str, SeenValue], first: frozenset[str] | None = None
    ) -> list[OutsideState]:
        """Return the values outside the state. `first`: paths that had a value before the first step, if known."""
        changed = {
            path: one
            for path, one in now.items()
            if path in before and before[path].mark != one.mark and _is_same(before[path], one)
        }
        found = self._weights({path: one for path, one in changed.items() if one.kind is SeenKind.TENSOR})
        for path, one in changed.items():
            if one.kind is SeenKind.GENERATOR and one.seed == before[path].seed:
                found += self._generator(path, one)
            elif one.kind in (SeenKind.NUMBER, SeenKind.ROW):
                found += self._number(path, one)
        if first is not None:
            found += self._kept(set(now) - set(changed) - first, now)
        if any(one.is_value for one in found) and remembers(self._functions):
            found = [dataclasses.replace(one, is_value=False) for one in found]
        return found[:_MOST_NAMED]

    # Inside.

    @property
    def influence(self) -> Influence:
        """Names that flow into the training; read at their first use."""
        if self._influence is None:
            self._influence = Influence(self._functions, self._held.ids)
        return self._influence

    def _weights(self, changed: Mapping[str, SeenValue]) -> list[OutsideState]:
        owners: dict[str, list[str]] = {}
        copies = self._held.samples | self._known
        for path, one in changed.items():
            if one.shape in self._held.shapes and one.mark not in copies:
                owners.setdefault(one.owner, []).append(path)
        found = []
        for paths in owners.values():
            first = changed[paths[0]]
            matrix = any(len(changed[path].shape) > 1 for path in paths)
            alike = len({changed[path].shape for path in paths}) > 1 or len(self._held.shapes) == 1
            line = (
                mixed_at(first.name, self._of(first))
                if is_users_class(first.owned_by) or first.owned_by is dict
                else ""
            )
            by_library = issubclass(first.owned_by, torch.nn.Module | torch.optim.Optimizer) or not self._readable(
                first
            )
            if matrix and alike and (line or by_library):
                found.append(OutsideState(paths[0], len(paths) - 1, line))
        return found

    def _generator(self, path: str, one: SeenValue) -> list[OutsideState]:
        texts = self._of(one)
        reaches = one.of_data or self.influence.reaches(one.owner) or self.influence.takes(path)
        return (
            [OutsideState(path, 0, _named_at(one.name, texts), not one.of_data)]
            if reaches and not is_seeded(one.name, texts)
            else []
        )

    def _number(self, path: str, one: SeenValue) -> list[OutsideState]:
        texts = self._of(one)
        if self._is_put_back(one) or (self._held.follows_epochs and only_sets_epochs(one.name, texts)):
            return []
        names = [one.name]
        if one.owned_by in (dict, list):  # its item may be set by a key that is a variable
            names.append(plain_path(one.owner).rpartition(".")[2])
        line = next(filter(None, (carried_at(name, texts) for name in names)), "")
        is_value = one.kind is SeenKind.NUMBER and not self._of_data(one)
        if one.kind is SeenKind.ROW:
            line = line or shuffled_at(one.name, texts)
        if not line or any(follows_step(name, texts) for name in names):
            return []
        own = [text for text in texts if text[0]] if is_users_class(one.owned_by) else texts
        methods = readers_of(one.name, [text for text in own if text[0]])
        if self.influence.takes(path):
            return [OutsideState(path, 0, line, is_value)]
        reaches = self._of_data(one) or self.influence.reaches(one.owner, methods)
        return [OutsideState(path, 0, line, is_value)] if reaches and (methods or not own) else []

    def _kept(self, paths: Iterable[str], now: Mapping[str, SeenValue]) -> list[OutsideState]:
        """Return values that an early step set once and later steps read. A new process sets them in another step."""
        found = []
        for path in sorted(paths):
            one = now[path]
            if one.owned_by not in self._set_once:
                self._set_once[one.owned_by] = set_once(self._of(one))
            line = self._set_once[one.owned_by].get(one.name, "")
            if not line or one.kind is SeenKind.GENERATOR or one.in_part or self._of_data(one):
                continue
            own = self._methods_of(one)
            methods = readers_of(one.name, own)
            if self.influence.takes(path) or (self.influence.reaches(one.owner, methods) and (methods or not own)):
                found.append(OutsideState(path, 0, line, is_kept=True))
        return found

    def _is_put_back(self, one: SeenValue) -> bool:
        """Return whether it is an attribute of a sampler that is restored as a pass begins."""
        holder = None if one.where is None else one.where()
        return (id(holder), one.name) in self._held.of_passes

    def _of_data(self, one: SeenValue) -> bool:
        """Return whether it belongs to a dataset or sampler of the state's loaders."""
        holder = None if one.where is None else one.where()
        return one.of_data or (holder is not None and id(holder) in self._held.data)

    def _of(self, one: SeenValue) -> list[tuple[str, str, Any]]:
        """Return the texts that may change or read it: those of its class, and the functions that are running."""
        return [*self._methods_of(one), *self._texts]

    def _methods_of(self, one: SeenValue) -> list[tuple[str, str, Any]]:
        kind = one.owned_by
        if kind not in self._methods:
            self._methods[kind] = ClassText(kind).methods if is_users_class(kind) else []
        return self._methods[kind]

    def _readable(self, one: SeenValue) -> bool:
        return is_users_class(one.owned_by) or one.owned_by in (dict, type(None))


def _names(frame: Any) -> dict[str, Any]:
    return {**frame.f_globals, **variables_of(frame)}


def _is_same(before: SeenValue, now: SeenValue) -> bool:
    """Return whether the same object has it now as then, as far as that is known."""
    if before.where is None or now.where is None:
        return True
    return before.where() is not None and before.where() is now.where()


def _named_at(name: str, texts: list[tuple[str, str, Any]]) -> str:
    """Return `file:line` of the first of these functions that names an attribute or variable."""
    for _, file, tree in texts:
        line = first_line(tree, name)
        if line:
            return f"{file}:{line}"
    return ""
