"""What is asked when a fault strikes or a job makes no progress, and what follows from the answers.

Rules:

1. A death is recovered from at once: evidence explains it and delays nothing.
2. A job without progress, or with a rank that came out of its collectives without a known reason, is asked about. A
   diagnosis that names living ranks has them replaced, as if they had died. One that names nobody leaves all processes
   alive: the step is done again.
3. An agent that does not answer is waited for as long as it may be silent: whether its node is lost is not judged here.
   One that is heard is asked again. A diagnosis that names all ranks is only told, until it has come again and again.
4. A diagnosis on a hang that is not proven is told at once, and acted upon after `unproven_s` (`core/watch.py`). That
   spends no restart: it may have been a false alarm.
5. A diagnosis is told once for a fault, and again only if its kind or its culprits change.
6. Slow ranks and losses that are not finite are told and change nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from taskd.core.attempts import Attempts
from taskd.core.diagnosis import lost_with_node
from taskd.core.evidence import Evidence
from taskd.core.findings import Diagnosis, Kind
from taskd.core.notices import Notices
from taskd.core.phases import LIVE, Note, Phase
from taskd.core.rhythm import Hang
from taskd.core.watch import AGAIN_S, ANSWER_S
from taskd.wire.messages import NodeStatus, Order

ASK_STRAYED_S = 0.1
"""A rank has strayed: the news of a loss that explains it mostly comes within this time, and is not disturbed."""
_QUESTIONS = 3
"""So often an agent that is heard is asked."""
_QUIET_HEARTBEATS = 1.5
"""An agent that was not heard for so many heartbeats is perhaps lost."""
_STEPS_AHEAD = 2
"""So far others may come after a rank has failed."""
_OWN_ERRORS = (Kind.EXCEPTION, Kind.DISK_FULL, Kind.OOM_HOST, Kind.OOM_DEVICE, Kind.EXITED, Kind.EXITED_EARLY)
"""What a rank says of itself, and nobody needs to be asked for."""
_TOLD_OF_THE_LIVING = (Kind.SIZE_MISMATCH, Kind.OP_MISMATCH, Kind.SKIPPED)
"""What a rank that came out with an error may be explained by, though every process lives."""


@dataclass(slots=True)
class Investigation(Notices):
    """The state of the job's newest diagnosis."""

    _open: bool = False
    """The fault with the newest number is under way."""
    _opened_at: int = -1
    """The newest step at that time."""
    _told: tuple[Kind, tuple[int, ...]] | None = None

    # ---- what is heard

    def note_progress(self, status: NodeStatus, place: int) -> None:
        """How far the ranks of a node are, and how fast."""
        if self.phase is Phase.RUNNING or (self.phase is Phase.STRAYED and self.watch.hang is not None):
            self.watch.progress(place, status.progress, self._now_s)
            step = status.progress.step if status.progress is not None else -1
            if self._open and self.record is None and step > self._opened_at + _STEPS_AHEAD:  # it lives after all
                self._close_case()
                self.watch.close()
            self.step = max(self.step, step)
            self._note_end_of_doubt()
            if status.spans:
                self.note_spans(status.spans)

    def _note_end_of_doubt(self) -> None:
        doubt, rhythm = self.watch.doubt, self.watch.rhythm.rhythm
        if doubt is not None and rhythm.step > doubt.step:
            self.watch.doubt = None
            took_s = (rhythm.progress_s or self._now_s) - doubt.since_s
            self._out.append(Note(f"the job gets on: it was at work for {took_s:.1f} s, which is known from now on"))

    def note_evidence(self, agent_id: str, probe: int, evidence: Mapping[int, Evidence]) -> None:
        """What an agent knows of its processes. What it says of ranks that are not its own is passed over."""
        places = self.world.known_places(agent_id)
        if not places:
            return
        evidence = {rank: known for rank, known in evidence.items() if rank // self.policy.ranks_per_node in places}
        self.watch.hear(agent_id, probe, evidence, self._now_s)
        seen = {rank: known for rank, known in evidence.items() if known.non_finite is not None}
        if seen:
            self.tell_not_finite(seen)
        if self._open and (self.record is not None or self._told is None):
            self.tell_diagnosis()
        elif not self._open and self.phase in LIVE and self.watch.hang is None:
            self._hear_self_report()

    def all_answered(self) -> bool:
        """Whether every agent that can be asked has answered an open question."""
        return self.watch.asked_s is not None and not self.watch.missing(self._probed_agents())

    def _probed_agents(self) -> list[str]:
        world = self.world
        return [world.holders[place] for place in world.places if place not in world.dead_nodes]

    # ---- the course of a probe

    def suspect(self, _subject: int) -> None:
        """The job makes no progress: ask every rank."""
        hang = self.watch.question(self._now_s)
        if hang is not None:
            self._enter(Phase.STRAYED)
            self._confirm_until_s = self._now_s + ANSWER_S
            self._send_probe(hang)

    def probe_strayed(self) -> None:
        """A rank has strayed, and no news has come yet: ask every rank, once. If one has ended, others may follow."""
        if self.watch.asked_s is None and not self._ended():
            self._send_probe(None)

    def _send_probe(self, hang: Hang | None) -> None:
        self._ask(hang)
        self._fault_since_s = hang.since_s if hang is not None else self._now_s
        self._order(Order.RUN)

    def _ask(self, hang: Hang | None) -> None:
        """The next directive carries a question, by a number that no other manager has asked by."""
        self._probe = self.sequence + 1
        self.watch.ask(self._probe, self._now_s, hang)

    def judge(self, _subject: int) -> None:
        """All that can be known is known."""
        ended = self._ended()
        if ended:
            self._begin(ended)
            return
        diagnosis, hang = self.watch.diagnosis(self.world.ranks, self._now_s), self.watch.hang
        if hang is None:
            if diagnosis is not None and diagnosis.kind in _TOLD_OF_THE_LIVING:
                self._replace_culprits(diagnosis)
            elif diagnosis is not None and diagnosis.kind in _OWN_ERRORS:
                said = {fact.rank: fact.text for fact in diagnosis.facts}  # it is dying, and its status not known yet
                self._begin({rank: self._cause(rank) or said.get(rank, "") for rank in diagnosis.culprits})
            return  # else the news of a loss may still be on its way
        if hang.early and not self._is_certain(diagnosis):
            self.watch.glanced(self._now_s)
            self._withdraw()
            return
        activity = self.watch.excuse(diagnosis)
        if self.watch.got_on() or activity is not None:
            self.watch.glanced(self._now_s)
            if activity is not None:
                self._out.append(Note(f"no step for {hang.silent_s:.1f} s: it is the {activity.value}"))
            self._withdraw()
            return
        if diagnosis is not None and self._waits_for(diagnosis):
            return
        alarms = self.watch.alarm()
        if self.policy.recover_hangs and diagnosis is not None and self._may_replace(diagnosis, alarms):
            self._replace_culprits(diagnosis)
        else:
            self._open_case()
            self.tell_diagnosis()
            self._close_case()
            self._withdraw()

    def _is_certain(self, diagnosis: Diagnosis | None) -> bool:
        """A rank provably stands, whatever the job's rhythm is."""
        return diagnosis is not None and diagnosis.proven and bool(_named(diagnosis)) and not self.watch.got_on()

    def _waits_for(self, diagnosis: Diagnosis) -> bool:
        """Whoever may be at work is told of at once, and is waited for."""
        before, hang = self.watch.doubt, self.watch.hang
        if diagnosis.proven or not self.watch.wait(self.faults + 1, self._now_s):
            return False
        if before is None or hang is None or before.since_s != hang.since_s:
            self._open_case()
            self.tell_diagnosis()
            self._close_case()
        self._withdraw()
        return True

    def overdue(self) -> bool:
        """The time for answers is over. True if the answers that are missing are not waited for any longer."""
        asked_s = self.watch.asked_s
        if self.watch.hang is None or asked_s is None:
            return True
        world, membership, missing = self.world, self.policy.membership, self.watch.missing(self._probed_agents())
        silent = [place for place in world.places if world.holders.get(place) in missing]
        heard_s = min((world.nodes[place].heard_s for place in silent if place in world.nodes), default=asked_s)
        quiet = self._now_s - heard_s > _QUIET_HEARTBEATS * membership.heartbeat_s
        patient = bool(missing) and quiet and self._now_s - asked_s < membership.dead_s
        if patient:
            self._confirm_until_s = self._now_s + membership.heartbeat_s
        elif missing and self.watch.asked < _QUESTIONS:
            self._send_probe(self.watch.hang)  # the question or the answer was lost
            self._confirm_until_s = self._now_s + ANSWER_S
            return False
        return not patient

    def _withdraw(self) -> None:
        self.watch.close()
        self._enter(Phase.RUNNING)

    def _may_replace(self, diagnosis: Diagnosis, alarms: int) -> bool:
        """If all are named, nobody is left to give the state: somebody has paused the job, and may let it go on."""
        return alarms > len(AGAIN_S) or not set(self.world.ranks) <= set(_named(diagnosis))

    def _replace_culprits(self, diagnosis: Diagnosis) -> None:
        """Whoever the diagnosis names is replaced; if it names nobody, every process may go on."""
        causes = {rank: diagnosis.kind.value for rank in _named(diagnosis) if rank in self.world.ranks}
        doubt, hang = self.watch.doubt, self.watch.hang
        if doubt is not None and hang is not None and (doubt.since_s, doubt.fault) == (hang.since_s, self.faults):
            self._open_case(again=True)
        self._free = not diagnosis.proven
        if self._free:
            self.watch.interrupt(self._now_s)
        for rank in causes:
            self.world.replace(rank, self._now_s, joins=True)
        self._begin(causes or {min(diagnosis.victims or self.world.ranks): diagnosis.kind.value})

    # ---- one fault

    def _hear_self_report(self) -> None:
        """A rank says what it dies of: that is known before it is dead."""
        diagnosis = self.watch.diagnosis(self.world.ranks, self._now_s)
        if diagnosis is not None and diagnosis.kind in _OWN_ERRORS:
            self._open_case()
            self.tell_diagnosis()

    def _begin(self, causes: dict[int, str]) -> None:
        if not self._open:
            self._open_case()
        self.watch.asked_s = None
        if self.watch.hang is None and not all(map(_explains_itself, causes.values())):
            self._ask(None)  # it goes out with the order that follows, and delays nothing
        Attempts._begin(self, causes)
        self.tell_diagnosis()

    def _stop(self, reason: str, exit_code: int) -> None:
        if (
            exit_code and not self._open and self._ended()
        ):  # else a launcher ends its ranks, and that needs no diagnosis
            self._open_case()
        Attempts._stop(self, reason, exit_code)

    def _succeed(self) -> None:
        Attempts._succeed(self)
        self._close_case()
        self.forget_paces()
        self._not_finite.clear()
        self.watch.begin(self._now_s)

    def _open_case(self, *, again: bool = False) -> None:
        self.faults += not again
        self._open, self._told = True, None
        self._opened_at = max(self.step, self.watch.newest_step())
        self._fault_since_s = self._now_s if self._fault_since_s is None else self._fault_since_s

    def _close_case(self) -> None:
        self._open, self._fault_since_s = False, None

    def tell_diagnosis(self) -> None:
        """Tell what the fault is, as far as it is known, unless that was told."""
        diagnosis = self.watch.diagnosis(self.world.ranks, self._now_s)
        if diagnosis is None:
            return
        if self.record is None and not diagnosis.proven and self.policy.recover_hangs:
            text = f"Unless it gets on, it is recovered from in {self.watch.unproven_s:.0f} s (TASKD_HANG_UNPROVEN_S)."
            diagnosis = replace(diagnosis, sentence=f"{diagnosis.sentence} {text}")
        if self.record is not None:
            self.record.diagnosis = diagnosis
            self.record.step = max(self.record.step, self.watch.newest_step())
        self._tell_once(diagnosis)

    def tell_lost_node(self, ranks: Collection[int], text: str) -> None:
        """Ranks are lost with their node, of which no evidence can come."""
        diagnosis = lost_with_node(ranks, text)
        if self.record is not None and self.record.diagnosis is None:
            self.record.diagnosis = diagnosis
        self._tell_once(diagnosis)

    def _tell_once(self, diagnosis: Diagnosis) -> None:
        if self._told != (diagnosis.kind, diagnosis.culprits):
            self._told = diagnosis.kind, diagnosis.culprits
            quiet = self.record is not None or (self.phase in LIVE and self._open and diagnosis.kind in _OWN_ERRORS)
            self.tell(diagnosis, self.watch.evidence(self._now_s), reported=not quiet)


def _named(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Who is to be replaced. That a node is silent is no reason: whether it is lost, its heartbeats tell."""
    return () if diagnosis.kind is Kind.SILENT else diagnosis.culprits


def _explains_itself(cause: str) -> bool:
    """A signal from outside, or for what the process itself has done. All else may be the consequence of another's."""
    return cause.startswith("signal ") and not cause.startswith(("signal 6 ", "signal 15 "))
