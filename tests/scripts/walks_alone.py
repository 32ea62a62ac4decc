"""A mutation of a script's processes: only the walks and the trial of the state are left of the self-check."""

from typing import Any

from taskd.adaptors.training.proof import alike, parameters, reading, self_check, set_up_writes, setup_facts


def leave_walks_alone() -> None:
    """Remove the other proofs from this process."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    for owner, name in (
        (reading, "refuse_inexact"),
        (self_check.SelfCheckRun, "_begin"),
        (self_check.SelfCheckRun, "differs"),
        (set_up_writes.SetUpWrites, "enter"),
        (setup_facts, "expect_same_setup"),
        *(
            (kind, method)
            for kind in (alike.AlikeRanks, parameters.ParameterWatch)
            for method in ("enter", "committed")
        ),
    ):
        if not hasattr(owner, name):
            raise AttributeError(f"{owner} has no {name} any more: the mutation does nothing")
        setattr(owner, name, nothing)
    alike.AlikeRanks.owes = parameters.ParameterWatch.owes = False  # type: ignore[assignment,method-assign]
