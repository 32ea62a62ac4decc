"""Self-check of one training function: when it is made, and the effect of its verdict on the job.

Rules:

1. It is made in the first world of a job, by ranks that begin together; never by a newcomer, and never after a fault.
   It is left out where its verdict could not be acted upon (no manager starts all processes anew).
2. A verdict that these processes find on their node is not proven again, unless the user wants it at each start. After
   a full restart, a rank on a new node takes it over from the others at its first commit.
3. Where the training is not exact, no process is kept at a fault: all start anew, as under torchrun. If the check
   itself has changed the training, they do so at once, which does not count as a restart.
"""

import logging
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

import torch.distributed as dist
from msgspec.structs import replace

from taskd.adaptors.groups.tables import default_store
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.proof.agreement import Agreement
from taskd.adaptors.training.proof.ahead import AheadTrial, settle
from taskd.adaptors.training.proof.anew import start_anew
from taskd.adaptors.training.proof.entry_writes import EntryWrites
from taskd.adaptors.training.proof.reentry import ProofOutlook, Reentered, ReentryProof
from taskd.adaptors.training.proof.verdict import VerdictFile
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.tripwire import Interrupted
from taskd.config.rundir import job_dir
from taskd.core.policy import SelfCheck
from taskd.runtime.records.selfcheck import CheckOutcome, CheckVerdict

logger = logging.getLogger(__name__)
R = TypeVar("R")
_REMEDY: Final = "Make what differs a part of the TrainState, or make it from state.step (docs/exactness.md)."


class SelfCheckRun:
    """Proof, for one session of one process, that the step can be done again."""

    def __init__(self, runtime: Runtime, recovery: StateRecovery) -> None:
        self._runtime, self._link, self._recovery = runtime, runtime.link, recovery
        self._known_exact = False
        self._proof: ReentryProof | None = None
        self._writes = EntryWrites()
        self._file: VerdictFile | None = None
        self._looks_elsewhere = False
        """True if other nodes may have a verdict, and this one has none."""
        self._published: CheckVerdict | None = None

    @property
    def runs(self) -> bool:
        """True if it must be called at commits."""
        return self._looks_elsewhere or self._proves

    @property
    def _proves(self) -> bool:
        return self._proof is not None and self._proof.runs

    @property
    def outlook(self) -> ProofOutlook:
        """Prospect of the step that is done twice, and its result so far."""
        if self._proves:
            return ProofOutlook.TO_COME
        return ProofOutlook.EXACT if self._known_exact else ProofOutlook.NONE

    def around(self, function: Callable[[], R]) -> Callable[[], R]:
        """Return the function to call in its place. Call this when the process has entered the job's world."""
        try:
            self._begin()
        except Exception:
            logger.exception("the self-check could not begin, and is left out; training goes on")
        if not self.runs:
            self._runtime.refusals.prove(exact=self._known_exact)
        proof = self._proof
        return function if proof is None else lambda: self._prove(function, proof)

    def entered(self) -> None:
        """Publish the verdict in a world that was formed after a fault: the training function is entered there."""
        try:
            self._publish()
        except RuntimeError:
            logger.warning("the self-check's verdict cannot be published to other nodes", exc_info=True)

    def committed(self) -> None:
        """Advance the proof at a commit, or read the verdict of another node."""
        if self._proof is not None:
            self._writes.stop()
            self._proof.committed()
        elif self._looks_elsewhere:
            self._look_elsewhere()

    def differs(self, reason: str) -> None:
        """Declare the training not exact: ranks, or a process and its predecessor, were alike before a fault only.

        Call it behind a commit.

        Raises:
            Interrupted: all processes start anew.
            RecoveryError: no manager starts this process anew.
        """
        verdict = CheckVerdict(outcome=CheckOutcome.NOT_EXACT, steps=(self._recovery.step,), reason=reason)
        logger.warning("self-check: %s", verdict.text)
        if self._file is None:  # this process is a newcomer
            self._file = self._verdict_file()
        self._file.write(verdict)
        self._heed(verdict)
        if not self._link.config.allows_inexact:
            start_anew(self._runtime, f"the training is {verdict.text}")

    def cancel(self) -> None:
        """Stop proving: a fault has come, or the training is over."""
        if self._proof is not None and self._proof.runs:
            if self._proof.has_differed:
                self._heed(CheckVerdict(outcome=CheckOutcome.NOT_EXACT, reason="a step that was done again differed"))
            self._proof.cancel()
            self._runtime.refusals.prove(exact=False)

    # Inside.

    def _begin(self) -> None:
        config = self._link.config
        if not dist.is_initialized():
            return
        world_size = dist.get_world_size()
        self._file = self._verdict_file()
        known = self._file.read()
        if known is not None and (known.outcome is CheckOutcome.NOT_EXACT or config.self_check is SelfCheck.AUTO):
            self._take(known)
            if known.ahead:
                self._recovery.record_again()  # a newcomer learns it from there, even at the very first step
            self._published = known if config.generation else None
            self._publish()
            return
        if config.generation or self._recovery.commits:
            if config.generation and not self._recovery.commits and config.self_check is SelfCheck.AUTO:
                self._looks_elsewhere = True
                for place in self._recovery.parts.loader_places.values():
                    if not place.ahead.batches:
                        place.ahead.follow()
            return
        prefix = f"taskd-self-check/{config.term}/{self._runtime.world.section}"
        agreement = Agreement(default_store(), prefix, dist.get_rank(), world_size, self._waiting)
        trial = AheadTrial(self._recovery.parts, suspected=self._runtime.refusals.fetches_ahead)
        self._proof = ReentryProof(self._recovery, agreement, trial, self._hindered, self._conclude)

    def _take(self, known: CheckVerdict) -> None:
        ahead = known.ahead if known.section == self._runtime.world.section else {}
        settle(self._recovery.parts.loader_places, ahead)
        self._known_exact = self._excuses(replace(known, ahead=ahead))
        self._heed(known)

    def _publish(self) -> None:
        if self._file is not None and self._published is not None:
            self._file.publish(self._published, default_store(), self._key())

    def _key(self) -> str:
        config, world = self._link.config, self._runtime.world
        return f"taskd-verdict/{config.term}/{config.generation}/{world.generation}/{world.section}"

    def _look_elsewhere(self) -> None:
        """Read the verdict that another rank may have published: all ranks have begun by now."""
        found = None
        try:
            if self._file is not None:
                found = self._file.look(default_store(), self._key())
        except (RuntimeError, ValueError):
            logger.warning("the self-check's verdict of the other nodes cannot be read, and is left out", exc_info=True)
        self._looks_elsewhere = False
        if found is not None:
            self._take(found)
            if found.ahead:
                self._recovery.record_commit()
        else:
            for place in self._recovery.parts.loader_places.values():
                if not place.ahead.batches:
                    place.ahead.settle(0)
        self._runtime.refusals.prove(exact=self._known_exact)

    def _verdict_file(self) -> VerdictFile:
        config = self._link.config
        return VerdictFile(job_dir(config.run_dir, config.job_id), dist.get_world_size())

    def _hindered(self) -> str:
        if self._writes.found:
            return self._writes.found
        refusals = self._runtime.refusals
        if refusals.hinders_proof:
            return refusals.hinders_proof
        if refusals.of_newcomers:
            return "at a fault all processes start anew in any case"
        return "the training is known not to be exact" if refusals.warned else ""

    def _waiting(self) -> None:
        if self._link.interrupted:
            raise Interrupted

    def _prove(self, function: Callable[[], R], proof: ReentryProof) -> R:
        self._writes.start()
        try:
            return self._prove_within(function, proof)
        finally:
            self._writes.stop()

    def _prove_within(self, function: Callable[[], R], proof: ReentryProof) -> R:
        while True:
            try:
                result = function()
            except Reentered as left:
                if self._link.interrupted:
                    raise
                traceback.clear_frames(left.__traceback__)
            except Exception as error:
                if proof.redoes and not self._link.interrupted:
                    proof.failed(error)
                raise
            else:
                proof.returned()
                return result
            if self._tells and not proof.has_differed:
                logger.warning(
                    "self-check: step %d is done twice, to prove that training goes on exactly after a fault; what it "
                    "prints comes twice (TASKD_SELF_CHECK=off leaves that out)",
                    self._recovery.step + 1,
                )
            proof.go_back()

    @property
    def _tells(self) -> bool:
        return self._runtime.rank == 0

    def _conclude(self, verdict: CheckVerdict) -> None:
        verdict = replace(verdict, section=self._runtime.world.section)
        if self._file is not None:
            self._file.write(verdict)
        if self._tells:
            logger.warning("self-check: %s", verdict.text)  # a script that sets up no logging shows warnings only
        self._heed(verdict)
        self._runtime.refusals.prove(exact=self._excuses(verdict))
        if verdict.outcome is CheckOutcome.NOT_EXACT:
            start_anew(self._runtime, f"the self-check has changed the training, which is {verdict.text}")

    def _excuses(self, verdict: CheckVerdict) -> bool:
        """Return whether the verdict clears the suspicions that the script's text has raised."""
        suspected = self._runtime.refusals.fetches_ahead
        return verdict.outcome is CheckOutcome.EXACT and (bool(verdict.ahead) or not suspected)

    def _heed(self, verdict: CheckVerdict) -> None:
        if verdict.outcome is not CheckOutcome.NOT_EXACT:
            return
        if self._link.config.allows_inexact:
            self._runtime.refusals.warn(f"the training is {verdict.text}. {_REMEDY}")
        else:
            self._runtime.refusals.add(Matter(f"the training is {verdict.text}", _REMEDY, no_rebuild=True))
