"""Plays scripts: each once undisturbed under stock torchrun and under taskd, then with kills as often as requested."""

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scripts.catalog import FAILED, IDENTICAL, PROGRAMS, REFUSED, RESTARTED, SILENT, Script
from tests.scripts.judge import Judgement, difference, expected, judge, judge_calm, refused_at_once, restarted
from tests.scripts.kills import NoPlaceError, draw
from tests.scripts.play import NO_CHECKS, Run, play, reread
from tests.scripts.verdict import Verdict, verdict_of

_STOCK_RUNS = 4


@dataclass(frozen=True)
class Outcome:
    """A script and its result. `folder` has the files of all its runs, unless it went well."""

    script: Script
    judgement: Judgement
    killed: list[tuple[int, str]]
    seconds: float
    hung: bool
    folder: Path
    verdict: Verdict = Verdict.NONE

    @property
    def is_wrong(self) -> bool:
        """True if it was silent or has failed."""
        return self.judgement.grade in (SILENT, FAILED)

    @property
    def disagrees(self) -> bool:
        """True if the kills contradict the self-check's verdict."""
        if self.verdict is Verdict.INEXACT:
            return self.judgement.grade is IDENTICAL
        return self.verdict is Verdict.PROVEN and self.is_wrong

    @property
    def line(self) -> dict[str, Any]:
        """Line of JSON."""
        return {
            "script": self.script.name,
            "grade": self.judgement.grade.value,
            "why": self.judgement.why,
            "shape": self.script.shape,
            "needs_check": self.script.needs_check,
            "verdict": self.verdict.value,
            "kills": [f"rank {rank} at {moment}" for rank, moment in self.killed],
            "seconds": round(self.seconds, 1),
            "folder": str(self.folder) if self.folder.exists() else None,
        }


class Stage:
    """Keeps the undisturbed runs of each script below `root`."""

    def __init__(
        self,
        root: Path,
        *,
        known: Path | None = None,
        brief: bool = False,
        keep: bool = False,
        checks: Mapping[str, str] = NO_CHECKS,
    ) -> None:
        self._root = root
        self._checks = checks
        self._known = known
        self._brief = brief
        self._keep = keep
        self._undisturbed: dict[str, tuple[Run, Judgement | None]] = {}
        self._plays = 0

    def play(self, script: Script, seed: str, kills: int, *, anywhere: bool = False) -> Outcome:
        """Play a script with its own kills, or so many, after its undisturbed runs if these are not known.

        With `anywhere` it is so many, even if the script has its own.
        """
        begun_s = time.monotonic()
        self._plays += 1
        folder = self._root / f"{self._plays:03d}-{script.name}"
        try:
            reference, wrong = self._of(script)
            if wrong is not None:
                calm = self._root / f"{script.name}-calm"
                return Outcome(script, self._allowed(script, wrong, None), [], time.monotonic() - begun_s, False, calm)
            planned = draw(reference.moments, kills, f"{script.name}-{seed}", () if anywhere else script.places)
        except (StockError, NoPlaceError) as error:
            return Outcome(script, Judgement(FAILED, str(error)), [], time.monotonic() - begun_s, False, self._root)
        run = play(script, folder, taskd=True, kills=planned, checks=self._checks)
        judgement = judge(script, run, reference)
        if judgement.grade is SILENT and restarted(run):
            stock = play(script, folder.with_name(f"{folder.name}-stock"), taskd=False, kills=planned)
            if not difference(run, stock):
                judgement = Judgement(RESTARTED, f"as under stock torchrun with these kills: {judgement.why}")
        # A kill anywhere may come before anything is known of the script, and is not at the places of its own.
        if not (anywhere and (judgement.grade is RESTARTED or (judgement.grade is REFUSED and script.places))):
            judgement = self._allowed(script, judgement, run)
        verdict = verdict_of(run)
        if judgement.grade not in (SILENT, FAILED) and not self._keep:
            shutil.rmtree(folder)
        return Outcome(script, judgement, run.killed, time.monotonic() - begun_s, run.hung, folder, verdict)

    @staticmethod
    def _allowed(script: Script, judgement: Judgement, run: Run | None) -> Judgement:
        if judgement.grade in (SILENT, FAILED) or expected(script, judgement.grade, run):
            return judgement
        allowed = " or ".join(grade.value for grade in script.allowed)
        why = f"{judgement.grade.value}, expected {allowed}: {judgement.why}"
        return Judgement(FAILED, why, judgement.healthy_replaced)

    def _of(self, script: Script) -> tuple[Run, Judgement | None]:
        """Return the undisturbed run under stock torchrun, and the defect of that under taskd."""
        if script.name not in self._undisturbed:
            reference = self._stock(script)
            if reference.status != 0 or len(reference.results) != script.ranks:
                refusal = refused_at_once(script, reference)
                if refusal:
                    self._undisturbed[script.name] = reference, Judgement(REFUSED, refusal)
                    return self._undisturbed[script.name]
                raise StockError(f"under stock torchrun it ends with {reference.status}: see {reference.folder}")
            wrong = None
            if not self._brief:
                folder = self._root / f"{script.name}-calm"
                calm = play(script, folder, taskd=True, checks=self._checks)
                wrong = judge_calm(calm, reference)
            self._undisturbed[script.name] = reference, wrong
        return self._undisturbed[script.name]

    def _stock(self, script: Script) -> Run:
        """Return the run under stock torchrun, from the folder of known ones if the script is unchanged."""
        if self._known is None:
            return self._play_stock(script)
        sources = [script.path, PROGRAMS.with_name("models.py"), PROGRAMS.with_name("diary.py")]
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
        folder = self._known / f"{script.name}-{digest}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            run = self._play_stock(script)
            if run.status != 0 or folder.exists():
                return run
            run.folder.rename(folder)
        return reread(folder, script.ranks)

    def _play_stock(self, script: Script) -> Run:
        """Play under stock torchrun, again if it hangs: gloo finds old addresses in the store of groups made anew."""
        folder = self._root / f"{script.name}-stock"
        runs = (play(script, folder / str(number), taskd=False) for number in range(_STOCK_RUNS))
        return next((run for run in runs if not run.hung), Run(folder / "0"))


class StockError(Exception):
    """A script does not run under stock torchrun, so it cannot serve to judge taskd."""
