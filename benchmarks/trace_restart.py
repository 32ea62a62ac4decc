"""The same faults under checkpoint and restart: any fault ends all processes, and a checkpoint is what is left.

Rules, as favourable as they can be held:

1. A restart takes `restart_s` from the strike on, detection of a loud fault included; a silent one (hang, corruption)
   takes its detection on top. A spare is always there: it never waits for a node.
2. Checkpoints are asynchronous and at Young's optimum. What is lost is what came after the last complete one; with
   corruption, after the last complete one before it struck.
3. Maintenance is announced: a checkpoint is written before, and nothing but the restart is lost.
4. A fault that strikes while the job is down (but for maintenance) begins the restart anew.
5. A lasting bug takes a person.
"""

from benchmarks.trace_faults import Fault, Kind
from benchmarks.trace_meter import TRAIN, Meter
from benchmarks.trace_times import Times

_SILENT = (Kind.HANG, Kind.CORRUPTION)


def play(faults: list[Fault], times: Times, length_s: float, interval_s: float) -> Meter:
    """The run's time, booked."""
    meter = Meter(times, interval_s, overhead_share=0.0)
    up_s = 0.0
    for fault in faults:
        if fault.at_s < up_s and fault.kind is Kind.NOTICE:
            continue
        if meter.mode != TRAIN and fault.at_s >= up_s:
            meter.switch(up_s, TRAIN, "", 1.0)
        meter.pass_to(fault.at_s)
        up_s = max(up_s, _strike(fault, meter, times))
    if meter.mode != TRAIN and up_s < length_s:
        meter.switch(up_s, TRAIN, "", 1.0)
    meter.pass_to(length_s)
    return meter


def _strike(fault: Fault, meter: Meter, times: Times) -> float:
    """Book what is lost at once; when the job trains again."""
    silent_s = fault.detect_s if fault.kind in _SILENT else 0.0
    manual_s = times.manual_s if fault.kind is Kind.BUG and fault.lasting else 0.0
    if meter.mode == TRAIN:
        meter.roll_back(meter.step_kept_s if fault.kind is Kind.NOTICE else meter.checkpoint_kept_s, fault.cause)
    meter.switch(fault.at_s, "restart", fault.cause, 1.0)
    return fault.at_s + silent_s + times.restart_s + manual_s
