"""The same faults under checkpoint and restart: any fault ends all processes, and only a checkpoint is left.

Rules, as favourable to restarts as possible:

1. A restart takes `restart_s` from the strike on, detection of a loud fault included. A silent fault (hang, corruption)
   adds its detection. A spare is always there, so the job never waits for a node.
2. Checkpoints are asynchronous and at Young's optimum. Work after the last complete checkpoint is lost. With
   corruption, work after the last checkpoint that was complete at the strike is lost.
3. Maintenance is announced. A checkpoint is written before, and nothing but the restart is lost.
4. A fault that strikes while the job is down begins the restart anew. Maintenance then changes nothing.
5. A lasting bug needs a person, which takes `manual_s`.
"""

from benchmarks.trace_faults import Fault, Kind
from benchmarks.trace_meter import TRAIN, Meter
from benchmarks.trace_times import Times

_SILENT = (Kind.HANG, Kind.CORRUPTION)


def play(faults: list[Fault], times: Times, length_s: float, interval_s: float) -> Meter:
    """Play the faults; return the booked time of the run."""
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
    """Book the immediate loss of a fault; return the time at which the job trains again."""
    silent_s = fault.detect_s if fault.kind in _SILENT else 0.0
    manual_s = times.manual_s if fault.kind is Kind.BUG and fault.lasting else 0.0
    if meter.mode == TRAIN:
        meter.roll_back(meter.step_kept_s if fault.kind is Kind.NOTICE else meter.checkpoint_kept_s, fault.cause)
    meter.switch(fault.at_s, "restart", fault.cause, 1.0)
    return fault.at_s + silent_s + times.restart_s + manual_s
