"""Jobs of sharded models that are killed at inconvenient moments, and the judgement of them.

Rules:

1. A kill is a rank, a step, and the number of a named moment within that step. The first process of the rank that
   reaches it is killed by the kernel, and no later one.
2. The reference is the same program under stock torchrun, without kills. Equal means: every rank's parts of weights and
   optimizer state, its buffers, and the loss of every step.
3. Only killed ranks have new processes. Every other process has its first objects, which the program checks.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.scripts.catalog import IDENTICAL, Script
from tests.scripts.judge import judge
from tests.scripts.play import Run, play

PROGRAM = Path(__file__).with_name("programs") / "scene.py"
RANKS = 4
FROM_COPIES = ("fsdp", "zero")
"""Kinds whose parts are on one rank alone."""
AS_LEFT = 10
"""Steps that are done again if taskd chooses how often it copies. Steps take some milliseconds here."""


@dataclass(frozen=True)
class Kill:
    """The process of `rank` is killed at its `number`-th moment of this name in step `step`."""

    rank: int
    step: int
    moment: str
    number: int = 1
    raises: bool = False
    """True if it is not killed, but raises an error of a connection."""
    forgets: bool = False
    """True if the copies of its local rank are lost with it, as with a node."""
    flips: bool = False
    """True if a bit flips in each copy of its own state on its node."""
    corrupts: bool = False
    """True if it is not killed, but a bit flips in a parameter of its own."""

    def __str__(self) -> str:
        how = "!" * self.raises + "~" * self.forgets + "^" * self.flips + "%" * self.corrupts
        return f"{self.rank}:{self.step}:{self.number}:{how}{self.moment}"


@dataclass(frozen=True)
class Scene:
    """One kind of job, and its kills."""

    name: str
    kind: str
    kills: tuple[Kill, ...]
    mutation: str = ""
    """Name of a mutation in `programs.mutations`."""
    nodes: int = 1
    seed: int = 1
    """Seed of the training state; 0: none, the random numbers are the script's own."""
    backup_every: int = -1
    """Argument of the training state; -1: not given."""
    saves: int = 0
    """Number of steps after which a checkpoint is written."""
    verify_every: int = 0
    """Argument of the training state; 0: not given. A rank that is odd is replaced."""
    steps: int = 20
    step_s: float = 0.0
    """Time by which a step is longer, in seconds, as if a device worked."""
    redone: int | None = None
    """Steps that may be done again, if not as many as from one copy to the next."""
    found: bool = True
    """True if the scene must fail with the mutation; False if it must succeed in spite of it."""

    def script(self, *, kills: bool) -> Script:
        """Return the script to play: with its kills, or undisturbed."""
        chosen = ";".join(map(str, self.kills)) if kills else ""
        return Script(
            "scene",
            (IDENTICAL,),
            self.name,
            ranks=RANKS,
            nodes=self.nodes,
            file=PROGRAM,
            environment=(
                ("SCENE_KIND", self.kind),
                ("SCENE_KILLS", chosen),
                ("SCENE_MUTATION", self.mutation),
                ("SCENE_SEED", str(self.seed)),
                ("SCENE_BACKUP_EVERY", str(self.backup_every)),
                ("SCENE_SAVES", str(self.saves)),
                ("SCENE_VERIFY_EVERY", str(self.verify_every)),
                ("SCENE_STEPS", str(self.steps)),
                ("SCENE_STEP_S", str(self.step_s)),
                ("TASKD_CORRUPTION_RECOVERY", "on" if self.verify_every else "off"),
            ),
        )


SCENES = (
    Scene(
        "HSDP inside backward, the root's parameters gathered",
        "hsdp",
        (Kill(1, 3, "into backward"), Kill(2, 7, "in a reduction"), Kill(0, 12, "into backward", 2)),
    ),
    Scene(
        "HSDP inside an all-gather",
        "hsdp",
        (Kill(3, 2, "in an all-gather"), Kill(0, 6, "in an all-gather", 4), Kill(2, 11, "in an all-gather", 7)),
    ),
    Scene(
        "HSDP between two accumulated parts",
        "hsdp",
        (Kill(0, 1, "between parts"), Kill(1, 8, "between parts"), Kill(3, 15, "between parts")),
    ),
    Scene(
        "HSDP inside the clipping's all-reduce",
        "hsdp",
        (Kill(2, 4, "before an all-reduce"), Kill(1, 9, "before an all-reduce"), Kill(0, 14, "before an all-reduce")),
    ),
    Scene(
        "HSDP between optimizer and commit",
        "hsdp",
        (
            Kill(0, 2, "between optimizer and commit"),
            Kill(3, 7, "committed"),
            Kill(1, 13, "between optimizer and commit"),
        ),
    ),
    Scene(
        "HSDP two ranks of different shards at once",
        "hsdp",
        (Kill(0, 5, "into backward"), Kill(3, 5, "into backward"), Kill(2, 12, "between parts")),
    ),
    Scene(
        "FSDP2 over all ranks, errors that every process survives",
        "fsdp",
        (
            Kill(1, 3, "into backward", raises=True),
            Kill(0, 8, "in an all-gather", 4, raises=True),
            Kill(3, 13, "between parts", raises=True),
        ),
    ),
    Scene(
        "FSDP2 over all ranks, from copies",
        "fsdp",
        (Kill(1, 6, "into backward"), Kill(0, 11, "in an all-gather", 4), Kill(2, 16, "between optimizer and commit")),
    ),
    Scene(
        "FSDP2 over all ranks, from copies that hold random numbers too",
        "fsdp",
        (Kill(3, 9, "into backward"), Kill(1, 17, "between parts")),
        seed=0,
        backup_every=6,
    ),
    Scene(
        "FSDP2 over all ranks, from a checkpoint: the copies of a rank are gone",
        "fsdp",
        (Kill(1, 7, "into backward", forgets=True), Kill(2, 14, "between optimizer and commit", forgets=True)),
        saves=3,
    ),
    Scene(
        "FSDP2 over all ranks, from a checkpoint that holds random numbers too",
        "fsdp",
        (Kill(3, 8, "between parts", forgets=True),),
        seed=0,
        saves=3,
    ),
    Scene(
        "FSDP2 over two nodes, from copies",
        "fsdp",
        (
            Kill(0, 6, "in an all-gather", 4),
            Kill(2, 11, "into backward"),
            Kill(3, 11, "into backward"),
            Kill(1, 16, "committed", forgets=True),
        ),
        nodes=2,
    ),
    Scene(
        "FSDP2 over two nodes, a bit flips in the copies of one",
        "fsdp",
        (Kill(2, 8, "into backward", flips=True), Kill(0, 14, "between parts")),
        nodes=2,
    ),
    Scene(
        "ZeRO-1 over all ranks inside the sync and in backward, from copies",
        "zero",
        (Kill(1, 6, "in the sync", 2), Kill(0, 11, "into backward"), Kill(3, 16, "in the sync", 4)),
    ),
    Scene(
        "ZeRO-1 over all ranks between parts, and between optimizer and commit, from copies",
        "zero",
        (Kill(2, 9, "between parts"), Kill(0, 15, "between optimizer and commit"), Kill(1, 17, "in the sync")),
        backup_every=6,
    ),
    Scene(
        "ZeRO-1 over two pairs inside the sync and in backward",
        "zero_pairs",
        (Kill(1, 3, "in the sync"), Kill(2, 8, "into backward"), Kill(0, 14, "in the sync", 2)),
    ),
    Scene(
        "tensor and data parallel inside backward and between parts",
        "tp",
        (Kill(1, 2, "into backward"), Kill(2, 8, "between parts"), Kill(0, 14, "in the all-reduces")),
    ),
    Scene(
        "tensor and data parallel inside the layers' all-reduces",
        "tp",
        (Kill(3, 3, "before an all-reduce", 2), Kill(0, 9, "before an all-reduce", 5), Kill(2, 15, "committed")),
    ),
    Scene(
        "pipeline and data parallel, the first stage",
        "pp",
        (Kill(0, 3, "through the pipeline"), Kill(2, 8, "in the stage", 5), Kill(0, 14, "in the stage", 7)),
    ),
    Scene(
        "pipeline and data parallel, the last stage",
        "pp",
        (
            Kill(1, 2, "in the stage", 3),
            Kill(3, 9, "between optimizer and commit"),
            Kill(1, 15, "through the pipeline"),
        ),
    ),
)

CORRUPTED = Scene(
    "a bit flips in a parameter of one rank of four: all go back to where they were equal",
    "ddp",
    (Kill(2, 11, "committed", corrupts=True),),
    backup_every=10,
    verify_every=5,
    steps=40,
    step_s=0.03,
    redone=29,
)
"""The next two copies come at steps 20 and 30. Until then the ranks can go back to those of step 10."""
CORRUPTED_SHARD = replace(
    CORRUPTED, name="the same with HSDP, of two replicas: which is right is not known", kind="hsdp"
)
SPLIT = (
    Scene(
        "HSDP over groups of split_group",
        "hsdp split",
        (Kill(1, 3, "into backward"), Kill(2, 7, "in a reduction"), Kill(0, 12, "in an all-gather", 4)),
    ),
    Scene(
        "tensor and data parallel over groups of split_group",
        "tp split",
        (Kill(3, 3, "before an all-reduce", 2), Kill(0, 9, "into backward")),
    ),
    Scene(
        "pipeline and data parallel over groups of split_group",
        "pp split",
        (Kill(0, 3, "through the pipeline"), Kill(3, 9, "in the stage", 5)),
    ),
)
"""After `init_process_group(device_id=…)`, on `programs.other_device`: meshes are made by `split_group`."""

FLIPPED = Scene("a bit flips in what a donor sends", "ddp", (Kill(1, 3, "step"),), "flip_a_bit", found=False)
NAN = Scene("a donor gives what is not finite", "ddp", (Kill(1, 3, "step"),), "donate_nan", found=False)
REFUSED = (FLIPPED, NAN)
"""Scenes in which a donor's state is found to be wrong, and another donor gives its own."""
MUTATED = (
    Scene("mutation: the first step is trusted", "ddp", (Kill(1, 3, "step"),), "trust_the_first_step"),
    replace(CORRUPTED, name="mutation: nothing is compared", mutation="compare_nothing"),
    Scene("mutation: gradients are kept", "hsdp", (Kill(1, 3, "in an all-gather", 4),), "keep_gradients"),
    Scene("mutation: one set for all", "pp", (Kill(3, 3, "through the pipeline"),), "one_set"),
    Scene("mutation: buffers are left", "pp", (Kill(0, 3, "through the pipeline"),), "leave_buffers"),
    Scene(
        "mutation: copies without a position",
        "fsdp",
        (Kill(3, 9, "into backward"),),
        "no_position",
        seed=0,
        backup_every=6,
    ),
    Scene("mutation: no handle in meshes", "tp", (Kill(2, 3, "into backward"),), "no_handle_in_meshes"),
)
"""Scenes with mutations, each of which must be detected."""


class Stage:
    """Plays scenes, and the undisturbed run of each kind once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._undisturbed: dict[str, Run] = {}

    def play(self, scene: Scene, folder: Path) -> tuple[dict[str, Any], str]:
        """Play a scene. Return its line of JSON, and a text for people."""
        reference = self._reference(scene)
        run = play(scene.script(kills=True), folder / "run", taskd=True)
        done = [kill for kill in scene.kills if (folder / "run" / f"killed-{kill}").exists()]
        run.killed = [(kill.rank, kill.moment) for kill in done if not kill.raises]
        recovered = run.named("recovered")
        took_ms = [round(record["phases_ms"].get("total", 0.0)) for record in recovered]
        wrong = self._wrong(scene, run, reference, len(done))
        found = {
            "name": scene.name,
            "kind": scene.kind,
            "kills": len(done),
            "recovered_ms": took_ms,
            "wrong": wrong,
        }
        return found, f"{len(done)} kills, recovered in {took_ms} ms"

    def _wrong(self, scene: Scene, run: Run, reference: Run, done: int) -> list[str]:
        wrong = []
        if reference.status != 0:
            return [f"under stock torchrun it ends with {reference.status}: see {reference.folder}"]
        judgement = judge(scene.script(kills=True), run, reference)
        if scene.mutation and scene.found:
            return ["it was not found"] if judgement.grade is IDENTICAL or not done else []
        if judgement.grade is not IDENTICAL:
            wrong.append(f"{judgement.grade.value}: {judgement.why}; see {run.folder}")
        wrong += self._unnoticed(scene, run)
        redone = max((record["steps_redone"] for record in run.named("recovered")), default=0)
        most = (
            scene.redone
            if scene.redone is not None
            else scene.saves or max(scene.backup_every, 0)
            if scene.kind.partition(" ")[0] not in FROM_COPIES or scene.backup_every >= 0
            else AS_LEFT
        )
        if redone > most:
            wrong.append(f"{redone} steps were done again, expected {most} at most")
        if done != len(scene.kills):
            wrong.append(f"{done} of {len(scene.kills)} kills were done")
        return wrong

    def _unnoticed(self, scene: Scene, run: Run) -> list[str]:
        """Return the damage to a state that was not detected."""
        refused = {one.mutation for one in REFUSED}
        if (scene.mutation in refused or any(kill.flips for kill in scene.kills)) and not run.named("attempt failed"):
            return ["what a donor gave was not found to be wrong"]
        named = [set(told["culprits"]) for told in run.named("diagnosis") if told["kind"] == "CORRUPTED"]
        odd = {kill.rank for kill in scene.kills if kill.corrupts}
        alone = scene.kind != "ddp"  # with two replicas, the correct one is unknown
        return [f"{named} were named, expected {odd}"] if odd and named != [set() if alone else odd] else []

    def _reference(self, scene: Scene) -> Run:
        known = f"{scene.kind}-{scene.seed}-{scene.steps}".replace(" ", "-")  # checkpoints change nothing of it
        if known not in self._undisturbed:
            folder = self._root / f"undisturbed-{known}"
            scene = replace(scene, mutation="", nodes=1, saves=0)
            self._undisturbed[known] = play(scene.script(kills=False), folder, taskd=False)
        return self._undisturbed[known]
