"""Trainings with popular libraries, killed at inconvenient moments, and the judgement of them.

Rules:

1. The reference is the same program on the plain library, under stock torchrun, without kills and without taskd.
2. Equal means: each rank's results at its end (weights, optimizer, metrics), its values of each step, and its loggers'
   lines: the same ones, none twice.
3. Only killed ranks have new processes. Only the step that a kill has interrupted is done again, unless a scene allows
   more.
4. A scene whose library is not installed fails: `scripts/trainers.sh` installs them all.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scripts.catalog import IDENTICAL, Script
from tests.scripts.judge import judge, judge_calm
from tests.scripts.play import LIMIT_S, Run, play
from tests.scripts.verdict import Verdict, verdict_in

_STOCK_RUNS = 4
PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class TrainerKill:
    """The process of `rank` is killed at its `number`-th moment of this name in step `step`."""

    rank: int
    step: int
    moment: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.rank}:{self.step}:{self.number}:{self.moment}"


@dataclass(frozen=True)
class TrainerScene:
    """One training with a library, and its kills.

    Args:
        name: begins with the trainer's name.
        program: file name without `.py`.
        kills: at least two.
        ranks: number of ranks.
        environment: variables that select the program's case.
        redone: steps that may be done again at a fault.
        launch: launcher of the program: torchrun, or "python" alone.
        limit_s: time after which a run hangs, in seconds.
        nodes: number of torchruns that share the ranks.
        folder: folder of the program.
        verdict: expected result of the self-check, without kills.
    """

    name: str
    program: str
    kills: tuple[TrainerKill, ...]
    ranks: int = 2
    environment: tuple[tuple[str, str], ...] = ()
    redone: int = 1
    launch: str = "torchrun"
    limit_s: float = LIMIT_S
    nodes: int = 1
    folder: Path = PROGRAMS
    verdict: Verdict = Verdict.PROVEN

    @property
    def undisturbed(self) -> tuple[object, ...]:
        """Key that is shared by scenes with the same runs without kills."""
        return self.program, self.ranks, self.environment, self.launch

    def script(self, *, kills: bool, plain: bool) -> Script:
        """Return the script: with its kills or undisturbed, and with taskd's adapter or on the `plain` library."""
        return Script(
            self.program,
            (IDENTICAL,),
            self.name,
            ranks=self.ranks,
            nodes=self.nodes,
            file=self.folder / f"{self.program}.py",
            launch=self.launch,
            environment=(
                *self.environment,
                ("SCENE_KILLS", ";".join(map(str, self.kills)) if kills else ""),
                ("TRAINER_PLAIN", str(int(plain))),
            ),
        )


class TrainerStage:
    """Plays scenes, and once each program and environment undisturbed, on the plain library and under taskd.

    The one under taskd must have the expected verdict, and equal the plain library's.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._undisturbed: dict[tuple[object, ...], Run] = {}
        self._checked: dict[tuple[object, ...], Run] = {}

    def play(self, scene: TrainerScene, folder: Path) -> tuple[dict[str, Any], str]:
        """Play a scene. Return its line of JSON, and a text for people."""
        reference = self._reference(scene)
        run = self._play(scene, folder / "run", kills=True)
        done = [kill for kill in scene.kills if (folder / "run" / f"killed-{kill}").exists()]
        run.killed = [(kill.rank, kill.moment) for kill in done]
        recovered = run.named("recovered")
        took_ms = [round(record["phases_ms"].get("total", 0.0)) for record in recovered]
        wrong = self._wrong(scene, run, reference, len(done))
        if reference.status == 0:
            wrong += self._wrong_when_checked(scene, reference)
        verdict = verdict_in(run.output).value
        found = {"name": scene.name, "kills": len(done), "recovered_ms": took_ms, "verdict": verdict, "wrong": wrong}
        checked = f"; self-check: {verdict}" if verdict else ""
        return found, f"{len(done)} kills, recovered in {took_ms} ms{checked}"

    def _wrong(self, scene: TrainerScene, run: Run, reference: Run, done: int) -> list[str]:
        if reference.status != 0:
            return [f"the plain library ends with {reference.status}: see {reference.folder}"]
        wrong = []
        judgement = judge(scene.script(kills=True, plain=False), run, reference)
        if judgement.grade is not IDENTICAL:
            wrong.append(f"{judgement.grade.value}: {judgement.why}; see {run.folder}")
        redone = max((record["steps_redone"] for record in run.named("recovered")), default=0)
        if redone > scene.redone:
            wrong.append(f"{redone} steps were done again, expected {scene.redone} at most")
        if done != len(scene.kills):
            wrong.append(f"{done} of {len(scene.kills)} kills were done")
        for rank in range(scene.ranks):
            mine, theirs = _logged(run, rank), _logged(reference, rank)
            if mine != theirs:
                odd = next((a for a, b in zip(mine, theirs, strict=False) if a != b), f"{len(mine)} lines")
                wrong.append(f"rank {rank} logged {odd!r}, on the plain library otherwise ({len(theirs)} lines)")
        return wrong

    def _wrong_when_checked(self, scene: TrainerScene, reference: Run) -> list[str]:
        if scene.undisturbed not in self._checked:
            folder = self._root / f"checked-{len(self._checked)}"
            self._checked[scene.undisturbed] = self._play(scene, folder, kills=False)
        run = self._checked[scene.undisturbed]
        judgement, verdict = judge_calm(run, reference), verdict_in(run.output)
        wrong = [] if judgement is None else [f"with the self-check, {judgement.why}; see {run.folder}"]
        if verdict is not scene.verdict:
            expected = scene.verdict.value
            wrong.append(f"the self-check's verdict is {verdict.value!r}, expected {expected!r}; see {run.folder}")
        return wrong

    def _play(self, scene: TrainerScene, folder: Path, *, kills: bool) -> Run:
        script = scene.script(kills=kills, plain=False)
        return play(script, folder, taskd=True, limit_s=scene.limit_s)

    def _reference(self, scene: TrainerScene) -> Run:
        if scene.undisturbed not in self._undisturbed:
            script = scene.script(kills=False, plain=True)
            for number in range(_STOCK_RUNS):  # torch aborts now and then, when a job without taskd ends
                folder = self._root / f"undisturbed-{len(self._undisturbed)}-{number}"
                self._undisturbed[scene.undisturbed] = run = play(script, folder, taskd=False, limit_s=scene.limit_s)
                if run.status == 0 and len(run.results) == scene.ranks:
                    break
        return self._undisturbed[scene.undisturbed]


def _logged(run: Run, rank: int) -> list[str]:
    path = run.folder / f"logged-{rank}"
    return path.read_text().splitlines() if path.exists() else []
