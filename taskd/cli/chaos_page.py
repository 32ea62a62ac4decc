"""`taskd chaos list`: the jobs of this node, their processes, and the scenarios that can be played on them here.

Rules:

1. Nothing is changed, and no process is contacted.
2. A scenario that cannot be played is shown with the reason and the remedy.
"""

import argparse
from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType

from taskd.cli.chaos_words import SCENARIOS
from taskd.cli.complaint import complain
from taskd.cli.tables import GOOD, QUIET, Listing, Row, heading, line, output, page, pairs
from taskd.errors import ChaosError, TaskdError
from taskd.runtime.chaos import network
from taskd.runtime.chaos.job import LocalJob, choose_job, find_jobs
from taskd.runtime.chaos.load import MIB, cpus_of
from taskd.runtime.system.cgroups import cgroups
from taskd.runtime.system.memory import memory_of

_LINKS: Final = ("cut-link", "slow-link")
_RANKS: Final = ("kill", "stop", "pause", "delay")


def show(options: argparse.Namespace) -> int:
    """Print the page. Return 0, or 1 with the reason on standard error."""
    try:
        jobs = find_jobs()
        chosen = options.job, options.run_dir, options.agent
        shown = jobs if jobs and chosen == (None, None, None) else [choose_job(jobs, *chosen)]
        page(output(), (part for job in shown for part in _job(job)))
    except TaskdError as error:
        complain("chaos", error)
        return 1
    return 0


def _job(job: LocalJob) -> Iterator[RenderableType]:
    ranks = job.ranks()
    yield line(f"job {job.job_id} · torchrun {job.agent.pid} · {len(ranks)} ranks on this node", "bold")
    checks = ", ".join(str(one.pid) for one in job.checks())
    yield pairs([("run directory", str(job.run_dir)), ("node checks", checks or "none at this moment")])
    rows: list[Row] = []
    for rank in ranks.values():
        known = rank.process.stat
        state = known.state.name.lower() if known is not None and known.state is not None else "ended"
        step = str(rank.step) if rank.step >= 0 else "none committed"
        rows.append(((str(rank.number), str(rank.process.pid), str(rank.incarnation), state, step), ""))
    yield Listing((">rank", ">pid", ">incarnation", "state", ">step"), rows)
    yield heading("Scenarios")
    yield Listing(
        ("scenario", "what it does", "here"),
        [_scenario(job, name) for name in SCENARIOS],
        wide=("what it does", "here"),
    )


def _scenario(job: LocalJob, name: str) -> Row:
    reason = _why_not(job, name)
    return (name, SCENARIOS[name], line(reason or _how(job, name), QUIET if reason else GOOD)), ""


def _why_not(job: LocalJob, name: str) -> str:
    if name in _LINKS:
        return network.why_not(job.agent.pid)
    if name in _RANKS and not job.ranks():
        return "no: no rank of the job lives on this node"
    return ""


def _how(job: LocalJob, name: str) -> str:
    match name:
        case "cpu":
            return f"yes: CPUs {', '.join(map(str, cpus_of(job.agent.pid)))}"
        case "memory":
            place = cgroups(job.agent.pid)
            memory = memory_of(place.memory if place is not None else None)
            whose = "the job's cgroup" if memory.limited else "this machine"
            return f"yes: {memory.free_bytes // MIB} of {memory.limit_bytes // MIB} MiB are free in {whose}"
        case "cut-link" | "slow-link":
            return _interface(job)
    return "yes"


def _interface(job: LocalJob) -> str:
    try:
        interface = network.choose_interface(None, job.env)
    except ChaosError as error:
        return f"yes, with --interface: {error}"
    risk = network.risk(interface)
    return f"yes: {interface}" + (f"; needs --yes: {risk}" if risk else "")
