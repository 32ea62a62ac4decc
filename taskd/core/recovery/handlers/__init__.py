"""What each event leads to in each phase: pure functions `(phase, event, job, now_s) -> (phase, effects)`.

They read the job's facts and change nothing. An effect's own event is dealt with before the next effect.
"""
