"""Every pair of phase and event that may happen: what it does, and which phases may come next.

Rules:

1. A pair without a row cannot happen. Where no plan was given there is nothing to join, restore, commit or dump: of
   who does, another manager is obeyed (`OVERTAKEN`). A job that has stopped takes in nothing but `OVERTAKEN`.
2. A row names the phases that its handler may return. Staying is always possible and is not named.
3. Whatever has to be recovered from goes through CHOOSING, which is left at once.
"""

from taskd.core.recovery.actions import Handler
from taskd.core.recovery.events import Event
from taskd.core.recovery.handlers import building, choosing, corruption, ending, membership, training
from taskd.core.recovery.handlers.common import ignore
from taskd.core.recovery.phases import BUILDING, HALTED, LIVE, WORLD, Phase
from taskd.core.table import Row, rows

_P = Phase
_NEWS = (_P.STRAYED, _P.SUSPECTING)
_UNFINISHED = (*LIVE, *BUILDING, _P.RESTARTING)
_FORMED = (*_UNFINISHED, _P.FINISHING)
_UP = (Event.STARTED, Event.PAUSED, Event.COMMITTED, Event.FINISHED, Event.EXITED)

TABLE: dict[tuple[Phase, Event], Row[Handler, Phase]] = {
    # the job forms
    **rows((_P.FORMING,), Event.FORMED, training.formed, _P.RUNNING),
    **rows((_P.FORMING,), Event.NODE_LOST, ignore),
    **rows((_P.FORMING,), Event.NODE_LEAVES, membership.leave_forming, _P.STOPPED),
    **rows((_P.FORMING,), Event.ISOLATED, membership.isolated, _P.STOPPED),
    # training
    **rows(LIVE, Event.LOST, training.lose, _P.STRAYED, _P.CHOOSING),
    **rows(LIVE, Event.PAUSED, training.stray, _P.STRAYED, _P.CHOOSING),
    **rows(LIVE, Event.STARTED, training.finish, _P.FINISHING),
    **rows(LIVE, Event.JOINED, ignore),  # a manager that takes over while a world is being built
    **rows(LIVE, Event.RESTORED, ignore),
    **rows(LIVE, Event.COMMITTED, training.note_progress),
    **rows(LIVE, Event.FINISHED, training.finish, _P.FINISHING),
    **rows((_P.RUNNING,), Event.EXITED, training.leave, _P.FINISHING, _P.STOPPED),
    # the end of a process that explains why another came out; or that of the training, or of the job
    **rows(_NEWS, Event.EXITED, training.leave_others, _P.CHOOSING, _P.FINISHING, _P.STOPPED),
    **rows(LIVE, Event.DUMPED, training.dumped_before, _P.STOPPED),
    **rows((_P.RUNNING,), Event.HUNG, training.suspect, _P.SUSPECTING),
    **rows((_P.RUNNING,), Event.CORRUPTED, corruption.recover, _P.CHOOSING),
    **rows((_P.RUNNING,), Event.RESTART_ASKED, training.start_anew, _P.CHOOSING),
    **rows((_P.STRAYED,), Event.ANSWERED, training.explain, _P.CHOOSING),
    **rows((_P.STRAYED,), Event.EXPIRED, training.unexplained, _P.CHOOSING),
    **rows((_P.SUSPECTING,), Event.ANSWERED, training.judge, _P.RUNNING, _P.CHOOSING),
    **rows((_P.SUSPECTING,), Event.EXPIRED, training.overdue, _P.RUNNING, _P.CHOOSING),
    **rows((_P.RUNNING,), Event.CANDIDATE, membership.grow, _P.REARRANGING, _P.CHOOSING),
    **rows((_P.RUNNING,), Event.DRAINED, membership.drain, _P.REARRANGING),
    # a strategy
    **rows((_P.CHOOSING,), Event.KEPT, choosing.pause, _P.PAUSING),
    **rows((_P.CHOOSING,), Event.RESTARTED, choosing.restart, _P.RESTARTING),
    **rows((_P.CHOOSING,), Event.UNDECIDED, choosing.wait, _P.AWAITING_QUORUM),
    **rows((_P.CHOOSING,), Event.REFUSED, choosing.stop, _P.STOPPED),
    # the pause
    **rows(HALTED, Event.STARTED, ignore),
    **rows((_P.AWAITING_QUORUM,), Event.LOST, building.lose_meanwhile, _P.CHOOSING),
    **rows((_P.AWAITING_QUORUM,), Event.EXITED, building.lose_meanwhile, _P.CHOOSING),
    **rows((_P.AWAITING_QUORUM, _P.PAUSING), Event.PAUSED, building.pausing, _P.ANNOUNCING),
    **rows((_P.AWAITING_QUORUM,), Event.CANDIDATE, membership.decide, _P.CHOOSING),
    **rows((_P.REARRANGING,), Event.PAUSED, building.pausing, _P.PAUSING, _P.ANNOUNCING),
    **rows((_P.REARRANGING,), Event.EXPIRED, building.hurry, _P.PAUSING),
    **rows((_P.REARRANGING,), Event.CANDIDATE, membership.welcome, _P.PAUSING),
    **rows((_P.PAUSING,), Event.EXPIRED, building.fence_late, _P.CHOOSING),
    **rows((_P.PAUSING,), Event.CANDIDATE, membership.welcome),
    **rows((_P.ANNOUNCING,), Event.PAUSED, building.plan, _P.JOINING, _P.CHOOSING),
    **rows((_P.ANNOUNCING,), Event.ECHOED, building.plan, _P.JOINING, _P.CHOOSING),
    # the new world
    **rows((*HALTED[1:], *WORLD, _P.RESTARTING), Event.LOST, building.lose_more, _P.CHOOSING),
    **rows((*HALTED[1:], *WORLD), Event.EXITED, building.lose_more, _P.CHOOSING),
    **rows(WORLD, Event.PAUSED, building.stray),
    **rows((_P.JOINING,), Event.JOINED, building.advance),
    **rows((_P.JOINING,), Event.RESTORED, building.advance, _P.RESUMING),
    **rows((_P.RESUMING,), Event.RESTORED, building.advance),
    **rows((_P.JOINING,), Event.COMMITTED, building.advance, _P.RESUMING, _P.RUNNING),
    **rows((_P.JOINING,), Event.FINISHED, building.advance, _P.RESUMING, _P.RUNNING),
    **rows((_P.RESUMING,), Event.COMMITTED, building.advance, _P.RUNNING),
    **rows((_P.RESUMING,), Event.FINISHED, building.advance, _P.RUNNING),
    **rows((_P.JOINING,), Event.DUMPED, building.dumped, _P.RESUMING, _P.STOPPED),
    **rows((_P.RESUMING,), Event.DUMPED, building.dumped, _P.STOPPED),
    **rows(WORLD, Event.EXPIRED, building.fail_world, _P.CHOOSING),
    # all start anew
    **{(_P.RESTARTING, event): Row(ending.restarted, (_P.RUNNING,)) for event in _UP},
    **rows((_P.RESTARTING,), Event.EXPIRED, ending.stop_late, _P.CHOOSING, _P.STOPPED),
    **rows((_P.RESTARTING,), Event.CANDIDATE, membership.welcome),
    # the training is over
    **rows((_P.FINISHING,), Event.LOST, ending.lose_outside, _P.CHOOSING),
    **rows((_P.FINISHING,), Event.STARTED, ending.reopen, _P.RUNNING, _P.CHOOSING),
    **rows((_P.FINISHING,), Event.COMMITTED, ending.reopen, _P.RUNNING, _P.CHOOSING),
    **rows((_P.FINISHING,), Event.FINISHED, ending.reopen, _P.RUNNING, _P.CHOOSING),
    **rows((_P.FINISHING,), Event.PAUSED, ending.stray_outside, _P.RUNNING, _P.CHOOSING),
    **rows((_P.FINISHING,), Event.EXITED, ending.leave, _P.CHOOSING, _P.STOPPED),
    **rows((_P.FINISHING,), Event.EXPIRED, ending.unsettled, _P.CHOOSING),
    # nodes
    **rows((*_NEWS, _P.ANNOUNCING, *WORLD, _P.FINISHING), Event.CANDIDATE, ignore),
    **rows(_UNFINISHED, Event.NODE_LOST, membership.lose_node, _P.CHOOSING),
    **rows((_P.FINISHING,), Event.NODE_LOST, ending.lose_node, _P.CHOOSING),
    **rows(_FORMED, Event.NODE_LEAVES, membership.leave_node, _P.CHOOSING),
    **rows(_FORMED, Event.ISOLATED, membership.isolated, _P.STOPPED),
    **rows(_FORMED, Event.OVERTAKEN, membership.follow, _P.RUNNING),
    **rows((_P.STOPPED,), Event.OVERTAKEN, ending.end_again),
}
