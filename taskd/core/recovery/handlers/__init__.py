"""What each event leads to in each phase: pure functions `(phase, event, job, now_s) -> (phase, commands)`.

They read the job's facts and change nothing. A command's own event is dealt with before the next command.
"""
