"""Reading of the script's functions where they are called, and search for calls that commit steps.

Rules:

1. A function of the script is read with the arguments of its call. None is read within itself. If it commits nothing
   and is given nothing that a recovery changes, its result is reused.
2. A generator that iterates over a loader of the state waits at its yields while steps are committed. Values that its
   names carry over a yield are lost, as the training function's own are.
"""

import ast
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Final

import torch

from taskd.adaptors.training.proof.flow.expressions import Expressions
from taskd.adaptors.training.proof.flow.scope import Closure, Code, Scope, code_of, inside, member
from taskd.adaptors.training.proof.flow.values import MISSING, PLAIN, VARYING, Elements, Root, Value, combine, merge

_DEEPEST: Final = 8
"""Most functions within functions that are read."""


class Functions(Expressions):
    """Reader of the script's functions."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._commits: dict[int, bool] = {}
        self._results: dict[tuple[Any, ...], Value] = {}
        self._codes: dict[tuple[int, int], Code | None] = {}
        self.firsts: dict[int, dict[str, Value]] = {}

    def read_training(self, code: Code, arguments: Sequence[Any], words: Mapping[str, Any]) -> None:
        """Read the training function, as it is called with these objects."""
        function = code.function
        assert function is not None
        frame = Scope(code, function.__code__.co_filename, graded=True)
        self.give(frame, [*map(self.of_object, arguments)], {name: self.of_object(one) for name, one in words.items()})
        self.frames.append(frame)
        commits = self.commits(code.node, frame)
        self.frames.pop()
        if commits:
            self.read_function(frame)

    def code_of(self, called: Any) -> Code | None:
        """Return the text of a function of the script. Functions of a model are not read."""
        if not isinstance(called, FunctionType | MethodType | Closure):
            return None
        own = called.__self__ if isinstance(called, MethodType) else MISSING
        if isinstance(own, torch.nn.Module) or isinstance(called, Closure):
            return code_of(called) if isinstance(called, Closure) else None
        key = id(getattr(called, "__func__", called)), id(own)
        if key not in self._codes:
            self._codes[key] = code_of(called)
        return self._codes[key]

    def is_commit(self, owner: Value, name: str, called: Any, said: str) -> bool:
        """Return whether a call is the state's commit. `said`: the name of its owner in the script."""
        if owner.obj is self.state:
            return name == "commit"
        if isinstance(called, MethodType):
            return called.__self__ is self.state and called.__func__.__name__ == "commit"
        return name == "commit" and owner.obj is MISSING and "state" in said

    def commits(self, node: Any, frame: Scope | None = None) -> bool:
        """Return whether steps are committed in a loop or a function, or in its calls. Record the calls that do so."""
        key = id(node)
        if key not in self._commits:
            self._commits[key] = False  # the answer to a function that calls itself
            self._commits[key] = self._looks_for_commits(node, frame or self.frame)
        return self._commits[key]

    def _looks_for_commits(self, node: Any, frame: Scope) -> bool:
        sites = self.aligned.sites.setdefault(id(node), set())
        for one in inside(node):
            if isinstance(one, ast.Call):
                called, commits = self.called_quietly(one.func, frame)
                code = None if commits else self.code_of(called)
                if commits or (code is not None and self.commits(code.node, self._quiet_frame(code, one, frame))):
                    sites.add(id(one))
            elif frame.yields and isinstance(one, ast.Yield | ast.YieldFrom):
                sites.add(id(one))
        return bool(sites)

    def called_quietly(self, func: ast.expr, frame: Scope) -> tuple[Any, bool]:
        """Return the called object, and whether the call commits, as far as known before the call is read."""
        if isinstance(func, ast.Attribute):
            owner, _ = self.called_quietly(func.value, frame)
            said = func.value.attr if isinstance(func.value, ast.Attribute) else getattr(func.value, "id", "")
            commits = self.is_commit(Value(obj=owner), func.attr, MISSING, said)
            return (MISSING, commits) if owner is self.state else (member(owner, func.attr), commits)
        if not isinstance(func, ast.Name):
            return MISSING, False
        known: Scope | None = frame
        while known is not None:
            found = None if known.env is None else known.env.names.get(func.id)
            if found is not None:
                return found.obj, self.is_commit(PLAIN, "", found.obj, "")
            defined = next((one for one in known.functions if one.name == func.id), None)
            if defined is not None:
                return Closure(defined, known), False
            known = known.outer
        found_obj = frame.known(func.id)
        return found_obj, self.is_commit(PLAIN, "", found_obj, "")

    def _quiet_frame(self, code: Code, call: ast.Call, frame: Scope) -> Scope:
        """Return a frame whose parameters are bound to the objects that they are given, as far as known."""
        inner = self.frame_of(code)
        named = ast.Name, ast.Attribute
        given = [self.called_quietly(one, frame)[0] if isinstance(one, named) else MISSING for one in call.args]
        words = {
            one.arg: self.called_quietly(one.value, frame)[0] for one in call.keywords if isinstance(one.value, named)
        }
        self.give(inner, [Value(obj=one) for one in given], {str(name): Value(obj=one) for name, one in words.items()})
        return inner

    def frame_of(self, code: Code) -> Scope:
        """Return the frame of a function that is about to be read."""
        file = self.frame.file if code.function is None else code.function.__code__.co_filename
        marks = getattr(code.node, "decorator_list", [])
        ungraded = any("no_grad" in ast.dump(one) or "inference_mode" in ast.dump(one) for one in marks)
        return Scope(code, file, graded=self.frame.graded and not ungraded)

    def own_call(self, code: Code, arguments: list[Value], words: dict[str, Value]) -> Value:
        """Return the value of a call of a function of the script."""
        frame = self.frame_of(code)
        given = combine([*arguments, *words.values()])
        if len(self.frames) > _DEEPEST or any(one.node is code.node for one in self.frames):
            return given._replace(root=max(given.root, Root.VARIES))
        self.give(frame, arguments, words)
        clean = not (given.taints or given.pending or self.control or code.function is None)
        commits = self.commits(code.node, frame)
        marks = (id(one.obj) if one.obj is not MISSING else one.root for one in [*arguments, *words.values()])
        key = (id(code.node), id(code.own), frame.graded, *marks)
        if clean and not commits and key in self._results:
            return self._results[key]
        result = self.read_function(frame)
        if clean and not commits:
            self._results[key] = result
        return result

    def give(self, frame: Scope, arguments: list[Value], words: dict[str, Value]) -> None:
        """Bind the parameters of a function."""
        env, spec = frame.env, frame.node.args
        assert env is not None
        names = [one.arg for one in [*spec.posonlyargs, *spec.args]]
        given = [*([] if frame.own is MISSING else [self.of_object(frame.own)]), *arguments]
        for name, default in zip(reversed(names), reversed(spec.defaults), strict=False):
            env.names[name] = Value(const=default.value) if isinstance(default, ast.Constant) else PLAIN
        for one, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            env.names[one.arg] = Value(const=default.value) if isinstance(default, ast.Constant) else PLAIN
        env.names.update(zip(names, given, strict=False))
        if spec.vararg is not None:
            env.names[spec.vararg.arg] = combine(given[len(names) :])
        env.names.update({name: value for name, value in words.items() if name != "**"})
        if spec.kwarg is not None:
            env.names[spec.kwarg.arg] = combine(words.values())
        for name in {*names, *(one.arg for one in spec.kwonlyargs)} - env.names.keys():
            env.names[name] = PLAIN

    def read_function(self, frame: Scope) -> Value:
        """Read a function whose parameters are bound. Return the value that it returns, or that it iterates over."""
        first = frame.env
        assert first is not None
        generates = any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inside(frame.node))
        start = first.copy() if generates else first
        self._run(frame)
        if generates:
            return self._generator(frame, start)
        if not frame.returned:
            return PLAIN
        result = frame.returned[0]
        for other in frame.returned[1:]:
            result = merge(result, other)
        return result

    def _generator(self, frame: Scope, start: Any) -> Value:
        if frame.passes and not frame.yields:
            frame.yields, frame.env, frame.given = True, start, []
            self._commits.clear()
            self._run(frame)
        element = frame.given[0] if frame.given else VARYING
        for other in frame.given[1:]:
            element = merge(element, other)
        return Value(shape=Elements(frame.passes, element))

    def _run(self, frame: Scope) -> None:
        self.frames.append(frame)
        try:
            body = frame.node.body
            if isinstance(body, list):
                self.run_block(body)
            else:
                frame.returned.append(self.read(body))
        finally:
            self.frames.pop()

    def run_block(self, block: list[ast.stmt]) -> None:
        """Read statements."""
        raise NotImplementedError
