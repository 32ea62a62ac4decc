"""Handlers of each event in each phase: pure functions `(phase, event, job, now_s) -> (phase, effects)`.

They read the job's facts and change nothing. An event that an effect returns is processed before the next effect.
"""
