"""Who opens connections to the manager and never says anything: what that costs a recovery, and an agent that comes."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from tests.attacks.job import AttackedJob

HELD, PER_SECOND, KILLS = 2500, 250, 5
MOST_TIMES = 2.0
"""A recovery among them takes at most so many times as long as one without."""
SILENT = "connections that say nothing were closed"
FLOODER = Path(__file__).with_name("flooder.py")


def flood(job: AttackedJob) -> None:
    """From now until the job has ended; returns when they are held, and the manager has told of them."""
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
    """Until the manager has warned of them: some have had their time by then."""
    assert job.manager is not None
    manager = job.manager
    job.wait(lambda: SILENT in job.launcher.output(manager), "a line of the manager")


def recover_among_silent_ones(job: AttackedJob) -> None:
    """A rank is killed some times before they come, and as often while they are there."""
    job.recovers_ms()  # the first one is slower
    calm = sorted(job.recovers_ms() for _ in range(KILLS))
    flood(job)
    among = sorted(job.recovers_ms() for _ in range(KILLS))
    times = statistics.median(among) / statistics.median(calm)
    job.found |= {"undisturbed_ms": calm, "disturbed_ms": among, "times": round(times, 2)}
    assert times <= MOST_TIMES, f"{among} ms among them, {calm} ms without, expected {MOST_TIMES} times at most"


def start_anew_among_silent_ones(job: AttackedJob) -> None:
    """The manager is killed while they are there: its successor must hear the agent, which comes anew as they do."""
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
