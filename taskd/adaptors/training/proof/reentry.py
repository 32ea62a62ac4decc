"""The re-entry proof: one early step is done twice on purpose, as after a fault, and must come out the same.

Rules:

1. All ranks leave the training function together, behind the backward pass of the third step of a job and before any
   optimizer changes anything. They enter it again at the last committed step. No group is formed anew, and no state is
   copied: the proof costs one step. An optimizer that is given a closure has called it for the first time then.
2. They leave only if all have agreed to (`agreement.py`). A rank that would not reach that point, or whose step could
   not be done again, gives the reason, and the verdict is `unproven`. If no optimizer steps on some rank (a gradient
   scaler skips steps until its scale fits), all ranks try a later step.
3. The content of the step (`step_digests.py`) is compared with that of the first time. Kernels of an accelerator that
   are not deterministic may give slightly different gradients.
4. If it differs, the script may have fetched a batch ahead, and the step is done again with that batch (`ahead.py`).
5. Any other difference means that the script keeps something that a recovery does not restore. The proof has then
   changed the training itself: all processes start anew, once and without counting a restart. They are not recovered in
   place.
6. A fault ends the proof. The proof fails no job: its own errors are logged, and the step goes on.
"""

import functools
import logging
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from taskd.adaptors.faults import in_one_line
from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.training.proof.agreement import AGREED, Agreement
from taskd.adaptors.training.proof.ahead import AheadTrial
from taskd.adaptors.training.proof.step_digests import StepDigests
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.tripwire import Interrupted
from taskd.errors import RecoveryError
from taskd.runtime.records.selfcheck import CheckOutcome, CheckVerdict

logger = logging.getLogger(__name__)
COMMITS_BEFORE: Final = 2
_LEAVE_S: Final = 5.0
"""Time limit to agree on leaving: ranks end a backward pass together, and the slowest then reads its gradients."""
_TRIES: Final = 7
"""Number of steps that are tried: 3, 4, 6, 10, 18, 34, 66. A scale of 2**32 fits half precision after some 20 steps."""
_SKIPPED: Final = "no optimizer has made a step that could be watched"
_RETURN_S: Final = 120.0
"""Time limit of the agreement on the result: the code before the first step may take one rank longer than another."""


class Reentered(Interrupted):
    """Exit from the training function for the proof: nothing has failed."""


class ProofOutlook(Enum):
    """Prospect of the proof in this job, and its result so far."""

    NONE = "no step is done twice"
    TO_COME = "one will be, or is at present"
    EXACT = "one was in an earlier start of the job, and came out the same"


class ProofStage(Enum):
    """Progress of the proof."""

    WAITING = "for the step to be proven"
    ARMED = "in that step, for the first optimizer"
    AGAIN = "in the same step, for the second time"
    OVER = "it has a verdict, or there will be none"


class ReentryProof:
    """Re-entry proof of one training function on one rank.

    Args:
        recovery: recovery of the state, whose step is done again.
        agreement: agreement of this rank with the others.
        ahead: the trial of batches that are fetched ahead.
        hindered: returns the reason why a proof is of no use here; "" if there is none.
        conclude: called once, with the verdict. May raise the error that leaves the training function.
    """

    def __init__(
        self,
        recovery: StateRecovery,
        agreement: Agreement,
        ahead: AheadTrial,
        hindered: Callable[[], str],
        conclude: Callable[[CheckVerdict], None],
    ) -> None:
        self._recovery, self._agreement, self._hindered, self._conclude = recovery, agreement, hindered, conclude
        self._ahead = ahead
        self._thread = threading.get_ident()
        self._hooks: list[RemovableHandle] = []
        self._first: StepDigests | None = None
        self._line = ""
        self._commits_before, self._tries = COMMITS_BEFORE, 0
        self.stage = ProofStage.WAITING

    @property
    def runs(self) -> bool:
        """True if it must be called at commits."""
        return self.stage is not ProofStage.OVER

    @property
    def redoes(self) -> bool:
        """True if the training function was entered again for it, and there is no result yet."""
        return self.stage is ProofStage.AGAIN

    @property
    def has_differed(self) -> bool:
        """True if the step has come out differently, and is done once more."""
        return self.redoes and self._ahead.tries > 0

    def committed(self) -> None:
        """Arm the proof at its commit, or handle a commit that should not have come yet."""
        if self.stage is ProofStage.WAITING and self._recovery.commits >= self._commits_before:
            self._arm()
        elif self.stage is ProofStage.ARMED:
            self._skipped()
        elif self.redoes:
            self._missed("the step was committed before an optimizer's step")

    def returned(self) -> None:
        """End the proof: the training function has returned."""
        if self.runs:
            self._missed(_SKIPPED if self._tries and not self.redoes else "the training ended first")

    def failed(self, error: BaseException) -> None:
        """End the proof: the repeated step has raised an error that the first run has not."""
        if self.redoes:
            self._end(CheckOutcome.NOT_EXACT, f"{self._line}: done again, the step raised {in_one_line(error)}")

    def cancel(self) -> None:
        """End the proof without a verdict: a fault has come first."""
        self._over()

    def go_back(self) -> None:
        """Restore everything to the last commit. Call it outside of the training function."""
        self._recovery.redo()
        if self._ahead.put_back():
            self._recovery.record_again()
        self._recovery.enter_again()

    # Inside.

    def _arm(self) -> None:
        self.stage = ProofStage.ARMED
        self._ahead.committed()
        self._hooks = [
            optimizer.register_step_pre_hook(_watching(self, number))
            for number, optimizer in enumerate(self._recovery.parts.optimizers)
        ]
        if not self._hooks:
            self._object("the state has no optimizer")

    def before_step(
        self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Handle an optimizer that is about to step. Return its arguments with other closures, or None to keep them.

        Raises:
            Reentered: the step must be done again.
            Interrupted: a fault has come.
            RecoveryError: the training is not exact, and no manager starts it anew.
        """
        given = args[1:]  # torch's hooks get the optimizer itself too, those of DeepSpeed's engine do not
        if any(map(callable, (*given, *kwargs.values()))):
            around = functools.partial(self._behind_closure, number)
            return (*args[:1], *map(around, given)), {name: around(value) for name, value in kwargs.items()}
        self._behind_backward(number)
        return None

    def _behind_closure(self, number: int, value: Any) -> Any:
        """Return a closure that computes the gradients as `value` does; return any other value as it is."""
        if not callable(value):
            return value

        @functools.wraps(value, updated=())
        def closure(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            self._behind_backward(number)
            return result

        return closure

    def _behind_backward(self, number: int) -> None:
        try:
            if self.stage is ProofStage.ARMED:
                leaves = self._leave(number)
            else:
                leaves = self.redoes and not self._compare(number)
        except (Interrupted, RecoveryError):
            self._recovery.withdraw_step()
            raise
        except Exception as error:
            logger.exception("the self-check failed, and is left out; training goes on")
            self._object(f"the self-check failed ({type(error).__name__})")
            return
        if leaves:
            self._recovery.withdraw_step()
            raise Reentered

    def _leave(self, number: int) -> bool:
        self._line = script_line()
        against = self._unfit()
        first = None if against else self._digests(number)
        if first is not None and not first.has_gradients:
            against = f"{self._line}: taskd can read no gradient"
        answer = f"optimizer {number}, {self._ahead.leave()} batches again"
        agreed = self._agreement.ask(self._question(), answer, _LEAVE_S, against=against)
        if agreed != AGREED:
            if not agreed.endswith(_SKIPPED):
                self._end(CheckOutcome.UNPROVEN, agreed)
            return False
        self._first = first
        self.stage = ProofStage.AGAIN
        return True

    def _skipped(self) -> None:
        """Try a later step: the armed one was committed, but an optimizer did not step on this rank or another."""
        agreed = self._agreement.object(self._question(self._recovery.step), _SKIPPED)
        self._tries += 1
        if not agreed.endswith(_SKIPPED) or self._tries == _TRIES:
            self._end(CheckOutcome.UNPROVEN, agreed)
            return
        self._unhook()
        self._commits_before = self._recovery.commits + 2 ** (self._tries - 1) - 1
        self.stage = ProofStage.WAITING
        self.committed()

    def _question(self, step: int | None = None) -> str:
        """Return the question whether all ranks leave this step; by default the present one."""
        return f"leave/{self._recovery.step + 1 if step is None else step}"

    def _unfit(self) -> str:
        """Return why the present step cannot be done again from here; "" if it can."""
        if threading.get_ident() != self._thread or torch._C._current_graph_task_id() != -1:
            return f"{self._line}: the optimizer steps inside of the backward pass"
        return self._hindered() or self._recovery.why_not_again()

    def _digests(self, number: int) -> StepDigests:
        parts = self._recovery.parts
        return StepDigests.of(parts, parts.optimizers[number])

    def _compare(self, number: int) -> bool:
        """Compare the step with the first time. Return False if it is to be done once more."""
        assert self._first is not None
        now = self._digests(number)
        found = self._first.first_difference(now)
        noise = found is not None and self._first.is_noise(now)
        against = f"done again, it differs in {found}" if found is not None and not noise else ""
        question = f"same/{self._ahead.tries}"
        agreed = self._agreement.ask(question, "same", _RETURN_S, against=against)
        if agreed == AGREED:
            self._end(CheckOutcome.EXACT, "but for kernels that are not deterministic" if noise else "")
            return True
        more = self._agreement.ask(f"{question}/more", "more", _RETURN_S, against=self._ahead.why_no_more)
        if more == AGREED:
            self._ahead.try_more()
            return False
        self._end(CheckOutcome.NOT_EXACT, f"{self._line}: {agreed}")
        return True

    def _missed(self, reason: str) -> None:
        """End the proof: the step has gone by. A repeated step can only do so if the script catches the exit."""
        if self.redoes:
            text = f"{self._line}: done again, {reason}; let BaseException pass in the training function"
            self._end(CheckOutcome.NOT_EXACT, text)
        else:
            self._object(reason)

    def _object(self, reason: str) -> None:
        self._agreement.object(f"same/{self._ahead.tries}" if self.redoes else self._question(), reason)
        self._end(CheckOutcome.UNPROVEN, reason)

    def _end(self, outcome: CheckOutcome, reason: str) -> None:
        ahead = self._over(exact=outcome is CheckOutcome.EXACT)
        if ahead:
            self._recovery.record_ahead()  # this step's record was made before the place was known
        steps = (self._recovery.step + 1,)
        self._conclude(CheckVerdict(outcome=outcome, steps=steps, reason=reason, ahead=ahead))

    def _over(self, *, exact: bool = False) -> dict[str, int]:
        self.stage = ProofStage.OVER
        self._unhook()
        self._first = None
        return self._ahead.end(exact=exact)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _watching(proof: ReentryProof, number: int) -> Callable[..., Any]:
    """Return the hook as a plain function: an optimizer that has it can still be copied."""

    def watch(_optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return proof.before_step(number, args, kwargs)

    return watch
