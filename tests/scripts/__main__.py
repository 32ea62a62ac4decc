"""Play scripts as users write them, undisturbed and with kills: `python -m tests.scripts --json`."""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.launch import end_as_by_an_error
from tests.scripts.catalog import FAILED, IDENTICAL, REFUSED, RESTARTED, SCRIPTS, SILENT, Script, chosen
from tests.scripts.grades import Grade
from tests.scripts.play import NO_CHECKS
from tests.scripts.stage import Outcome, Stage
from tests.scripts.unseen_list import UNSEEN

_KILLS = 2
_KILLS_AT_RANDOM = 5


class Mutation(NamedTuple):
    """A weaker self-check. At least `least` of the scripts that need the check must end with one of the grades."""

    environment: Mapping[str, str]
    grades: tuple[Grade, ...]
    least: int
    scripts: frozenset[str] = frozenset()
    """Scripts of the mutation, if not all that need the self-check."""


_MENDED = frozenset(
    (
        "all_at_once_nodes",
        "batchnorm",
        "counting_wrapper",
        "dcp",
        "ema_batchnorm",
        "enumerate_accumulate",
        "enumerate_break",
        "enumerate_critic",
        "enumerate_rate",
        "evaluate_rank0",
        "evaluation_all",
        "evaluation_inner",
        "evaluation_workers_both",
        "evaluation_workers_cut",
        "loss_behind_loop",
        "pipeline_first_step",
        "sampler_counts_passes",
        "seed_each_epoch",
        "split_momentum",
    )
)
"""Scripts that are exact by mechanisms for few shapes of scripts each."""
_WALKED = frozenset(
    (
        "callback_after_fault",
        "callback_early",
        "callback_reference",
        "callback_shadow",
        "ema_swapped_after_commit",
        "ema_swapped_in_epochs",
        "loss_weights",
        "sharpness_aware",
        "split_momentum",
        "stream_with_memory",
    )
)
"""Scripts that the walks alone find. Without the self-check each of them is silently different."""
MUTATIONS = {
    "unchecked": Mutation({"TASKD_SELF_CHECK": "off"}, (SILENT,), 12),
    "walks-alone": Mutation({"SCRIPT_WALKS_ALONE": "1"}, (IDENTICAL, REFUSED, RESTARTED), len(_WALKED), _WALKED),
    "unmended": Mutation({"TASKD_SELF_CHECK": "off", "SCRIPT_UNMENDED": "1"}, (SILENT, FAILED), len(_MENDED), _MENDED),
}


def main() -> int:
    """Play scripts. Return 0 if none was silent or failed and no verdict was wrong, or if a mutation had its effect."""
    parser = argparse.ArgumentParser(prog="scripts/scripts.sh", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each script")
    parser.add_argument("--only", metavar="NAME", default="", help="this script, or those with NAME in their names")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--unseen", action="store_true", help="those written without a look at what taskd checks")
    group.add_argument(
        "--mutation", choices=MUTATIONS, help="scripts without what makes them exact: the self-check, or a part of it"
    )
    parser.add_argument("--list", action="store_true", help="say which scripts there are and what may become of each")
    parser.add_argument(
        "--random-kills", metavar="N", type=int, default=0, help="scripts at random until so many kills"
    )
    parser.add_argument("--seed", default="0", help="of the moments of the kills (default 0)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of runs that went well, too")
    parser.add_argument("--known", metavar="DIR", type=Path, help="keep what stock torchrun makes of each script here")
    parser.add_argument("--brief", action="store_true", help="leave the undisturbed runs under taskd out")
    args = parser.parse_args()
    known = UNSEEN if args.unseen else SCRIPTS
    mutation = MUTATIONS.get(args.mutation)
    scripts = chosen(args.only, [script for script in known if mutation is None or _shows(mutation, script)])
    if not scripts:
        parser.error(f"no script has {args.only!r} in its name; there are: {', '.join(s.name for s in known)}")
    if args.list:
        print(*map(_described, scripts), sep="\n")
        return 0
    os.nice(5)
    end_as_by_an_error()
    root = Path(tempfile.mkdtemp(prefix="taskd-scripts-"))
    checks = NO_CHECKS if mutation is None else mutation.environment
    stage = Stage(root, known=args.known, brief=args.brief, keep=args.keep, checks=checks)
    if args.random_kills:
        status, last = at_random(stage, scripts, args.random_kills, args.seed, as_json=args.json)
    else:
        status, last = each(stage, scripts, args.seed, as_json=args.json, mutation=None if args.only else mutation)
    if status or args.keep:
        print(f"scripts: folders are in {root}", file=sys.stderr)
    else:
        shutil.rmtree(root)
    print(json.dumps(last), flush=True)
    return status


def _shows(mutation: Mutation, script: Script) -> bool:
    return script.name in mutation.scripts if mutation.scripts else script.needs_check


def _described(script: Script) -> str:
    shape = f", shape {script.shape}" if script.shape else ""
    mark = ", needs the self-check" if script.needs_check else ""
    allowed = " or ".join(grade.value for grade in script.allowed)
    return f"{script.name}{shape}{mark}: {allowed}: {script.why}"


def each(
    stage: Stage, scripts: list[Script], seed: str, *, as_json: bool, mutation: Mutation | None = None
) -> tuple[int, dict[str, Any]]:
    """Play every script once. A mutation only has to show its effect."""
    outcomes = [show(stage.play(script, seed, _KILLS), as_json=as_json) for script in scripts]
    counts = Counter(outcome.judgement.grade for outcome in outcomes)
    failed = [outcome.script.name for outcome in outcomes if outcome.judgement.grade is FAILED]
    grades = (IDENTICAL, REFUSED, RESTARTED, SILENT)
    last = {"scripts": len(outcomes), **{grade.value: counts[grade] for grade in grades}, "failed": failed}
    last["disagree"] = [outcome.script.name for outcome in outcomes if outcome.disagrees]
    if mutation is not None:
        last["at_least"] = {" or ".join(grade.value for grade in mutation.grades): mutation.least}
        return int(sum(counts[grade] for grade in mutation.grades) < mutation.least), last
    return int(any(outcome.is_wrong or outcome.disagrees for outcome in outcomes)), last


def at_random(
    stage: Stage, scripts: list[Script], wanted: int, seed: str, *, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Play random scripts until so many kills were done."""
    dice = random.Random(seed)
    kills, outcomes = 0, list[Outcome]()
    while kills < wanted:
        outcome = stage.play(dice.choice(scripts), f"{seed}-{len(outcomes)}", _KILLS_AT_RANDOM, anywhere=True)
        outcomes.append(show(outcome, as_json=as_json))
        kills += len(outcome.killed)
        if not outcome.killed and outcome.judgement.grade is FAILED:
            scripts = [script for script in scripts if script != outcome.script]  # it fails undisturbed: once is enough
            if not scripts:
                break
    grades = [outcome.judgement.grade for outcome in outcomes]
    last = {
        "kills": kills,
        "plays": len(outcomes),
        "silent": grades.count(SILENT),
        "hangs": sum(outcome.hung for outcome in outcomes),
        "healthy_replaced": sum(outcome.judgement.healthy_replaced for outcome in outcomes),
        "failed": sorted({outcome.script.name for outcome in outcomes if outcome.judgement.grade is FAILED}),
    }
    return int(bool(last["silent"] or last["failed"])), last


def show(outcome: Outcome, *, as_json: bool) -> Outcome:
    """Print a line for a script."""
    if as_json:
        print(json.dumps(outcome.line), flush=True)
    else:
        kills = ", ".join(f"rank {rank} at {moment}" for rank, moment in outcome.killed)
        took = f"{time.strftime('%H:%M:%S')} {outcome.seconds:.0f} s"
        grade = outcome.judgement.grade.value
        verdict = f"; self-check: {outcome.verdict.value}" if outcome.verdict.value else ""
        print(f"{grade:9} {outcome.script.name}: {outcome.judgement.why} [{kills}; {took}{verdict}]", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
