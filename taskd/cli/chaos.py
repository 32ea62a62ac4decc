"""`taskd chaos SCENARIO`: play a fault on a running job, on this node, and undo it.

Rules:

1. Faults hit only processes of the chosen job. Their owner is checked right before each fault.
2. Every action is printed as it is done, and so is every undoing at the end. Ctrl-C ends and undoes the scenario. A
   SIGKILL of this command does the same, because a cleanup process that it has started then undoes the changes.
3. Exit codes: 0 if the scenario was played (and undone), 1 if not, with the reason; 2 for wrong usage.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from taskd.cli.chaos_words import parse
from taskd.cli.complaint import complain
from taskd.errors import ChaosError, TaskdError
from taskd.runtime.chaos import network, pressure, scenarios
from taskd.runtime.chaos.cleanup import Cleanup
from taskd.runtime.chaos.job import LocalJob, choose_job, find_jobs
from taskd.runtime.chaos.scenario_run import ScenarioRun, say
from taskd.wire.kinds import JobRank, LocalRank

_LOOK_S: Final = 0.05
_FOREVER: Final = ("kill-check",)
"""Scenarios that may start before their job: they wait for it without a limit."""


def chaos(arguments: Sequence[str]) -> int:
    """Play one scenario. Return 0, or 1 with the reason on standard error. Exits for wrong usage."""
    options = parse(arguments)
    if options.scenario == "list":
        from taskd.cli.chaos_page import show

        return show(options)
    try:
        with ScenarioRun(for_s=options.for_s, dry=options.dry_run).open() as run:
            return 0 if _play(run, options) else 1
    except TaskdError as error:
        complain("chaos", error)
        return 1


def _play(run: ScenarioRun, options: argparse.Namespace) -> bool:
    """Play a scenario. Return whether all its changes were undone."""
    job = _await_job(run, options)
    if job is None:
        return True
    run.follow(job.agent.pid)
    cleanup = Cleanup()
    try:
        _SCENARIOS[options.scenario](run, job, cleanup, options)
        run.tell_end()
    finally:
        good = cleanup.close()
    return good


def _await_job(run: ScenarioRun, options: argparse.Namespace) -> LocalJob | None:
    """Wait for the chosen job. Return None if the scenario had to end first.

    Raises `ChaosError` if there is no such job in time.
    """
    turns = None if options.scenario in _FOREVER and options.wait_s is None else int((options.wait_s or 0) / _LOOK_S)
    wanted, told = (options.job, options.run_dir, options.agent), False
    while True:
        jobs = find_jobs()
        if turns == 0 or run.dry or any(job.fits(*wanted) for job in jobs):
            return choose_job(jobs, *wanted)
        if not told:
            say("no such job on this node yet; waiting for it")
            told = True
        if not run.pause(_LOOK_S):
            return None
        turns = None if turns is None else turns - 1


def _rank(job: LocalJob, options: argparse.Namespace) -> JobRank:
    numbers: list[JobRank | None] = [options.rank, options.named_rank]
    named = next((number for number in numbers if number is not None), None)
    if named is not None:
        return named
    local: LocalRank = options.local_rank
    of_node = job.of_node()
    if local in of_node:
        return of_node[local]
    if not of_node:
        raise ChaosError("no rank of this node has a process at this moment; try again")
    here = ", ".join(map(str, of_node.values()))
    raise ChaosError(f"found no local rank {local}, expected one of the {len(of_node)} of this node (ranks: {here})")


def _kill_check(run: ScenarioRun, job: LocalJob, _cleanup: Cleanup, _options: argparse.Namespace) -> None:
    count = scenarios.kill_checks(run, job)
    if not run.dry:
        say(f"{count} node checks were killed")


def _kill(run: ScenarioRun, job: LocalJob, _cleanup: Cleanup, options: argparse.Namespace) -> None:
    scenarios.kill(run, job, _rank(job, options), options.every_s)


def _stop(run: ScenarioRun, job: LocalJob, cleanup: Cleanup, options: argparse.Namespace) -> None:
    scenarios.stop(run, job, cleanup, _rank(job, options))


def _delay(run: ScenarioRun, job: LocalJob, cleanup: Cleanup, options: argparse.Namespace) -> None:
    scenarios.delay(run, job, cleanup, _rank(job, options), options.ms / 1e3, options.every_s)


def _cpu(run: ScenarioRun, job: LocalJob, _cleanup: Cleanup, options: argparse.Namespace) -> None:
    pressure.load_cpus(run, job, options.percent)


def _memory(run: ScenarioRun, job: LocalJob, _cleanup: Cleanup, options: argparse.Namespace) -> None:
    amount = pressure.Amount(options.mib, options.percent)
    pressure.fill_memory(run, job, amount, any_victim=options.any_victim, sure=options.yes)


def _disk(run: ScenarioRun, job: LocalJob, _cleanup: Cleanup, options: argparse.Namespace) -> None:
    amount = pressure.Amount(options.mib, options.percent)
    pressure.fill_disk(run, options.directory or job.run_dir, amount, sure=options.yes)


def _cut_link(run: ScenarioRun, job: LocalJob, cleanup: Cleanup, options: argparse.Namespace) -> None:
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
    pressure.change_network(run, cleanup, steps, told)


def _slow_link(run: ScenarioRun, job: LocalJob, cleanup: Cleanup, options: argparse.Namespace) -> None:
    interface = _interface(job, options)
    _check_risk(interface, options)
    steps = network.brake(interface, options.mbit)
    pressure.change_network(run, cleanup, steps, f"{interface}: sends at most {options.mbit:g} Mbit/s")


def _interface(job: LocalJob, options: argparse.Namespace) -> str:
    reason = network.why_not(job.agent.pid)
    if reason:
        raise ChaosError(reason)
    return network.choose_interface(options.interface, job.env)


def _check_risk(interface: str, options: argparse.Namespace) -> None:
    reason = network.risk(interface)
    if reason and not options.yes:
        raise ChaosError(f"{reason}; if that is what you want, say --yes")


_SCENARIOS: Final[dict[str, Callable[[ScenarioRun, LocalJob, Cleanup, argparse.Namespace], None]]] = {
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
