"""Silent connections to the manager: their cost for a recovery, and for an agent that connects."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from tests.attacks.job import AttackedJob

HELD, PER_SECOND, KILLS = 2500, 250, 5
MOST_TIMES = 2.0
"""Limit of a recovery among silent connections, as a multiple of one without."""
SILENT = "connections that say nothing were closed"
FLOODER = Path(__file__).with_name("flooder.py")


def flood(job: AttackedJob) -> None:
    """Flood the manager until the job ends. Return when all connections are held and the manager has reported them."""
    words = (job.address.host, job.address.port, HELD, PER_SECOND)
    process = subprocess.Popen([sys.executable, FLOODER, *map(str, words)], stdout=subprocess.PIPE, text=True)

    def end() -> None:
        process.terminate()
        said, _ = process.communicate()
        job.found["flood"] = json.loads(said.strip() or "{}")

    job.also.callback(end)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n", "the flood did not begin"
    await_told(job)


def await_told(job: AttackedJob) -> None:
    """Wait until the manager has warned of silent connections. Some of them have reached their age limit by then."""
    assert job.manager is not None
    manager = job.manager
    job.wait(lambda: SILENT in job.launcher.output(manager), "a line of the manager")


def recover_among_silent_ones(job: AttackedJob) -> None:
    """Kill a rank some times before the flood, and as often during it."""
    job.recovers_ms()  # the first one is slower
    calm = sorted(job.recovers_ms() for _ in range(KILLS))
    flood(job)
    among = sorted(job.recovers_ms() for _ in range(KILLS))
    times = statistics.median(among) / statistics.median(calm)
    job.found |= {"undisturbed_ms": calm, "disturbed_ms": among, "times": round(times, 2)}
    assert times <= MOST_TIMES, f"{among} ms among them, {calm} ms without, expected {MOST_TIMES} times at most"


def start_anew_among_silent_ones(job: AttackedJob) -> None:
    """Kill the manager during the flood. Its successor must serve the agent, which reconnects as the silent ones do."""
    flood(job)
    assert job.manager is not None
    known = len(job.named("processes"))
    job.manager.kill()
    job.manager.wait()
    job.start_manager()
    job.wait(lambda: job.named("processes")[known:], "the agent at the new manager")
    (began,) = job.named("manager started")[1:]
    job.found["heard_after_ms"] = round(1000 * (job.named("processes")[known]["monotonic_s"] - began["monotonic_s"]))
    await_told(job)
