"""`taskd chaos SCENE`: play a fault on a running job, on this node, and undo it.

Rules:

1. Only processes of the one job that is meant are struck; whose they are is looked up right before each blow.
2. Every action is told as it is done, and what was undone at the end. Ctrl-C ends and undoes; so does a SIGKILL of this
   command, by the guardian that it has started.
3. Exit codes: 0 if the scene was played (and undone), 1 if not, with the reason; 2 for wrong usage.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from taskd.cli.chaos_words import parse
from taskd.cli.complaint import complain
from taskd.errors import ChaosError, TaskdError
from taskd.runtime.chaos import network, pressure, scenes
from taskd.runtime.chaos.guardian import Guardian
from taskd.runtime.chaos.job import Job, choose_job, find_jobs
from taskd.runtime.chaos.stage import Stage, say

_LOOK_S: Final = 0.05
_FOREVER: Final = ("kill-check",)
"""Scenes that may be set before their job is: they wait for it."""


def chaos(arguments: Sequence[str]) -> int:
    """Play one scene. Returns 0, or 1 with the reason on standard error; leaves for wrong usage."""
    options = parse(arguments)
    if options.scene == "list":
        from taskd.cli.chaos_page import show

        return show(options)
    try:
        with Stage(for_s=options.for_s, dry=options.dry_run).open() as stage:
            return 0 if _play(stage, options) else 1
    except TaskdError as error:
        complain("chaos", error)
        return 1


def _play(stage: Stage, options: argparse.Namespace) -> bool:
    """Whether all was undone."""
    job = _await_job(stage, options)
    if job is None:
        return True
    stage.follow(job.agent.pid)
    guardian = Guardian()
    try:
        _SCENES[options.scene](stage, job, guardian, options)
        stage.tell_end()
    finally:
        good = guardian.close()
    return good


def _await_job(stage: Stage, options: argparse.Namespace) -> Job | None:
    """The job that is meant; None if the end came before it. Raises `ChaosError` if there is none in time."""
    turns = None if options.scene in _FOREVER and options.wait_s is None else int((options.wait_s or 0) / _LOOK_S)
    wanted, told = (options.job, options.run_dir, options.agent), False
    while True:
        jobs = find_jobs()
        if turns == 0 or stage.dry or any(job.fits(*wanted) for job in jobs):
            return choose_job(jobs, *wanted)
        if not told:
            say("no such job on this node yet; waiting for it")
            told = True
        if not stage.pause(_LOOK_S):
            return None
        turns = None if turns is None else turns - 1


def _rank(job: Job, options: argparse.Namespace) -> int:
    numbers: list[int | None] = [options.rank, options.named_rank]
    named = next((number for number in numbers if number is not None), None)
    if named is not None:
        return named
    local: int = options.local_rank
    places = job.places()
    if local < len(places):
        return places[local]
    here = ", ".join(map(str, places)) or "none"
    raise ChaosError(f"found no local rank {local}, expected one of the {len(places)} of this node (ranks: {here})")


def _kill_check(stage: Stage, job: Job, _guardian: Guardian, _options: argparse.Namespace) -> None:
    count = scenes.kill_checks(stage, job)
    if not stage.dry:
        say(f"{count} node checks were killed")


def _kill(stage: Stage, job: Job, _guardian: Guardian, options: argparse.Namespace) -> None:
    scenes.kill(stage, job, _rank(job, options), options.every_s)


def _stop(stage: Stage, job: Job, guardian: Guardian, options: argparse.Namespace) -> None:
    scenes.stop(stage, job, guardian, _rank(job, options))


def _delay(stage: Stage, job: Job, guardian: Guardian, options: argparse.Namespace) -> None:
    scenes.delay(stage, job, guardian, _rank(job, options), options.ms / 1e3, options.every_s)


def _cpu(stage: Stage, job: Job, _guardian: Guardian, options: argparse.Namespace) -> None:
    pressure.load_cpus(stage, job, options.percent)


def _memory(stage: Stage, job: Job, _guardian: Guardian, options: argparse.Namespace) -> None:
    amount = pressure.Amount(options.mib, options.percent)
    pressure.fill_memory(stage, job, amount, any_victim=options.any_victim, sure=options.yes)


def _disk(stage: Stage, job: Job, _guardian: Guardian, options: argparse.Namespace) -> None:
    amount = pressure.Amount(options.mib, options.percent)
    pressure.fill_disk(stage, options.directory or job.run_dir, amount, sure=options.yes)


def _cut_link(stage: Stage, job: Job, guardian: Guardian, options: argparse.Namespace) -> None:
    interface = _interface(job, options)
    peers = network.addresses(options.peer) if options.peer else []
    if not peers:
        _check_risk(interface, options)
    if options.down:
        steps, told = network.down(interface), f"{interface}: taken down, its routes are forgotten"
    else:
        steps = network.silent_cut(interface, peers)
        whose = f"to and from {', '.join(peers)}" if peers else "of all kinds, in both directions"
        told = f"{interface}: packets {whose} are lost without a word"
    pressure.change_network(stage, guardian, steps, told)


def _slow_link(stage: Stage, job: Job, guardian: Guardian, options: argparse.Namespace) -> None:
    interface = _interface(job, options)
    _check_risk(interface, options)
    steps = network.brake(interface, options.mbit)
    pressure.change_network(stage, guardian, steps, f"{interface}: sends at most {options.mbit:g} Mbit/s")


def _interface(job: Job, options: argparse.Namespace) -> str:
    reason = network.why_not(job.agent.pid)
    if reason:
        raise ChaosError(reason)
    return network.choose_interface(options.interface, job.env)


def _check_risk(interface: str, options: argparse.Namespace) -> None:
    reason = network.risk(interface)
    if reason and not options.yes:
        raise ChaosError(f"{reason}; if that is what you want, say --yes")


_SCENES: Final[dict[str, Callable[[Stage, Job, Guardian, argparse.Namespace], None]]] = {
    "kill-check": _kill_check,
    "kill": _kill,
    "stop": _stop,
    "pause": _stop,
    "delay": _delay,
    "cpu": _cpu,
    "memory": _memory,
    "disk": _disk,
    "cut-link": _cut_link,
    "slow-link": _slow_link,
}
