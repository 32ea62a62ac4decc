"""Counts of which only the remainder by some number is used, where each commit comes at the same remainder.

With `if (i + 1) % 4 == 0: optimizer.step(); state.commit()` a recovery goes on behind a multiple of four batches. `i`
begins at 0 again, and its remainder by four is the one that it would have had.
"""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from taskd.adaptors.training.proof.flow.scope import Loop, assigned, inside
from taskd.adaptors.training.proof.flow.values import MISSING, TaintKind, Taints

_COUNTS: Final = (TaintKind.INDEX, TaintKind.CARRIED)


class Remainder(NamedTuple):
    """`(name + offset) % divisor == rest`; a rest of -1 is the divisor's last."""

    name: str
    offset: int
    divisor: str
    rest: int


class AlignedCounts:
    """Search for such counts. `sites` are the calls that commit, by the id of the loop that they are in."""

    def __init__(self) -> None:
        self.sites: dict[int, set[int]] = {}
        self._known: dict[tuple[int, str], str] = {}

    def misaligned(self, node: ast.BinOp, taints: Taints, loops: list[Loop]) -> Taints:
        """Return the taints of the dividend that its remainder has too."""
        found = _count(node.left)
        if found is None:
            return taints
        name, divisor = found[0], ast.dump(node.right)
        if not any(self._divisor(loop, name) == divisor for loop in loops if loop.commits and not loop.nested):
            return taints
        return frozenset(one for one in taints if one.name != name or one.kind not in _COUNTS)

    def _divisor(self, loop: Loop, name: str) -> str:
        key = id(loop.node), name
        if key not in self._known:
            self._known[key] = self._of_loop(loop, name)
        return self._known[key]

    def _of_loop(self, loop: Loop, name: str) -> str:
        """Return the number by which this name has the same remainder at each commit of the loop; "" for none."""
        step = _steps(loop, name)
        sites = self.sites.get(id(loop.node), set())
        if step is None or not sites:
            return ""
        first, at = step
        divisors = set()
        for held, number in _conditions(loop.node.body, sites):
            found = [rest for test, truth in held for rest in _rests(test, truth) if rest.name == name]
            fits = {rest.divisor for rest in found if _comes_round(rest, first, counted=at is not None and at < number)}
            divisors.add(min(fits, default=""))
        return divisors.pop() if len(divisors) == 1 else ""


def _comes_round(rest: Remainder, first: int, *, counted: bool) -> bool:
    """Return whether the next turn of the loop begins with the remainder that the first one began with."""
    return rest.rest - rest.offset + (not counted) - first == 0


def _steps(loop: Loop, name: str) -> tuple[int, int | None] | None:
    """Return a count's first value, and the number of the statement that adds 1 to it: None if enumerate does.

    Return None if the name is no such count.
    """
    node = loop.node
    target = getattr(node, "target", None)
    if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name) and target.elts[0].id == name:
        return _start_of(node.iter), None
    first = loop.first.get(name)
    adds = [number for number, one in enumerate(node.body) if _adds_one(one, name)]
    others = sum(name in assigned(one) for one in node.body)
    if first is None or type(first.const) is not int or len(adds) != 1 or others != 1:
        return None
    return first.const, adds[0]


def _start_of(call: ast.AST) -> int:
    """Return the number that enumerate begins with."""
    for one in ast.walk(call):
        if isinstance(one, ast.Call) and getattr(one.func, "id", "") == "enumerate":
            given = [word.value for word in one.keywords if word.arg == "start"] + one.args[1:2]
            return given[0].value if given and isinstance(given[0], ast.Constant) else 0  # type: ignore[return-value]
    return 0


def _adds_one(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.AugAssign(target=ast.Name(id=found), op=ast.Add(), value=ast.Constant(value=1)):
            return found == name
        case ast.Assign(
            targets=[ast.Name(id=found)],
            value=ast.BinOp(left=ast.Name(id=again), op=ast.Add(), right=ast.Constant(value=1)),
        ):
            return found == again == name
    return False


Held = list[tuple[ast.expr, bool]]


def _conditions(block: list[Any], sites: set[int], held: Held | None = None) -> Iterator[tuple[Held, int]]:
    """Yield the conditions that hold where each of these calls is made, and the number of the outermost statement."""
    holds = list(held or [])
    for number, one in enumerate(block):
        if isinstance(one, ast.If):
            for body, truth in ((one.body, True), (one.orelse, False)):
                yield from ((found, number) for found, _ in _conditions(body, sites, [*holds, (one.test, truth)]))
            if isinstance(one.body[-1], ast.Continue) and not one.orelse:
                holds.append((one.test, False))
        elif blocks := [found for field in ("body", "orelse", "finalbody") if (found := getattr(one, field, None))]:
            for body in blocks:
                yield from ((found, number) for found, _ in _conditions(body, sites, holds))
        elif any(id(found) in sites for found in inside(one)):
            yield list(holds), number


def _rests(test: ast.expr, truth: bool) -> Iterator[Remainder]:
    """Yield the remainders of counts that hold if a condition has this truth."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _rests(inner, not truth)
        case ast.BoolOp(op=ast.And(), values=parts) if truth:
            for part in parts:
                yield from _rests(part, truth)
        case ast.BoolOp(op=ast.Or(), values=parts) if not truth:
            for part in parts:
                yield from _rests(part, truth)
        case ast.Compare(
            left=ast.BinOp(op=ast.Mod()) as mod, ops=[ast.Eq() | ast.NotEq() as compares], comparators=[of]
        ):
            if truth is isinstance(compares, ast.Eq):
                yield from _rest(mod, of)
        case ast.BinOp(op=ast.Mod()) if not truth:
            yield from _rest(test, ast.Constant(value=0))


def _rest(mod: ast.BinOp, of: ast.expr) -> Iterator[Remainder]:
    count, divisor = _count(mod.left), ast.dump(mod.right)
    match of:
        case ast.Constant(value=int(rest)):
            size = mod.right.value if isinstance(mod.right, ast.Constant) else MISSING
            last = type(size) is int and rest == size - 1
        case ast.BinOp(left=whole, op=ast.Sub(), right=ast.Constant(value=1)) if ast.dump(whole) == divisor:
            rest, last = -1, True
        case _:
            return
    if count is not None:
        yield Remainder(*count, divisor, -1 if last else rest)


def _count(node: ast.expr) -> tuple[str, int] | None:
    """Return a name, and the number that is added to it; None for any other expression."""
    match node:
        case ast.Name(id=name):
            return name, 0
        case ast.BinOp(left=ast.Name(id=name), op=ast.Add(), right=ast.Constant(value=int(number))):
            return name, number
        case ast.BinOp(left=ast.Name(id=name), op=ast.Sub(), right=ast.Constant(value=int(number))):
            return name, -number
    return None
