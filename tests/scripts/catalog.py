"""The scripts, and the results that each may have when its ranks are killed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.scripts.grades import Grade
from tests.scripts.kills import Place
from tests.scripts.shapes import SHAPES

PROGRAMS = Path(__file__).with_name("programs")


IDENTICAL, REFUSED, RESTARTED = Grade.IDENTICAL, Grade.REFUSED, Grade.RESTARTED
SILENT, FAILED = Grade.SILENT, Grade.FAILED


@dataclass(frozen=True)
class Script:
    """One script, and its name in `programs`.

    Args:
        name: file name without `.py`.
        allowed: results that it may have.
        why: why nothing better is allowed, or the difficulty of the script.
        ranks: number of ranks.
        restarts: torchrun's budget, enough for all kills of a run.
        nodes: number of torchruns that share the ranks, all on this machine.
        options: options of torchrun.
        file: its path, if not in `programs`.
        environment: variables that it gets.
        launch: its launcher: torchrun, or "python" alone.
        shape: number of its shape in issue 36's list of shapes; 0: none.
        places: where its kills strike, one for each; none: two, drawn from the seed.
        memory_mib: limit of the container that it runs in; 0: none. Needs root.
        needs_check: only the self-check finds it. Without the self-check it ends otherwise than allowed.
    """

    name: str
    allowed: tuple[Grade, ...]
    why: str
    ranks: int = 2
    nodes: int = 1
    restarts: int = 20
    options: tuple[str, ...] = ()
    file: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()
    launch: str = "torchrun"
    shape: int = 0
    places: tuple[Place, ...] = ()
    memory_mib: int = 0
    needs_check: bool = False

    @property
    def path(self) -> Path:
        """Path of its file."""
        return self.file or PROGRAMS / f"{self.name}.py"


SCRIPTS = (
    # Data
    Script("step_batches", (IDENTICAL,), "the README's loop: batches are a function of the step"),
    Script("no_seed", (IDENTICAL,), "each rank's own random numbers are put back"),
    Script(
        "epochs_plain_loader", (IDENTICAL,), "a plain DataLoader in the state, and an evaluation at each epoch's end"
    ),
    Script("epochs_shuffle", (IDENTICAL,), "a plain DataLoader in the state, shuffled by itself"),
    Script(
        "epochs_skip_batches",
        (IDENTICAL, REFUSED),
        "a plain DataLoader outside of the state; only its sampler is in it",
    ),
    Script(
        "workers_own_generator",
        (IDENTICAL, REFUSED),
        "workers draw noise; the loader's generator is seeded in each epoch",
    ),
    Script("workers_persistent", (IDENTICAL,), "workers stay from epoch to epoch"),
    Script("stateful_epochs", (IDENTICAL,), "deaths at the end of an epoch are the hard ones"),
    Script("stateful_workers", (IDENTICAL,), "the same with workers, which have read ahead"),
    Script("stateful_next", (IDENTICAL,), "one iterator is kept, and asked"),
    Script("iterable", (IDENTICAL,), "the dataset knows its own position"),
    # Steps
    Script("accumulate", (IDENTICAL,), "a death among the micro-batches; buckets are sent in the last alone"),
    Script("commit_per_microbatch", (IDENTICAL, REFUSED), "accumulated gradients are in no state: refused by name"),
    Script("gan", (IDENTICAL,), "torn between the steps of two optimizers in the first step: from copies; then undone"),
    Script("critic_steps", (IDENTICAL,), "one optimizer steps thrice a commit; as the GAN"),
    Script("ema", (IDENTICAL,), "deaths between optimizer and average"),
    Script(
        "ema_averaged_model",
        (IDENTICAL,),
        "a collective between optimizer and average; torn there: from copies",
    ),
    Script("amp", (IDENTICAL,), "the scaler leaves a step out"),
    Script("lbfgs", (IDENTICAL,), "parameters change within one step of the optimizer, at each closure"),
    Script("closure", (IDENTICAL,), "forward and backward are inside the optimizer's step, but nothing is changed yet"),
    Script("clip_schedule", (IDENTICAL,), "three ranks", ranks=3),
    Script(
        "plateau",
        (IDENTICAL,),
        "the scheduler is told a loss that all have reduced, and not in every step; deaths before that: from copies",
    ),
    Script("mean_loss", (IDENTICAL,), "a collective between optimizer and commit, and a scheduler of each epoch"),
    Script("swallow", (IDENTICAL, REFUSED), "what tells a rank that a peer is gone is swallowed by the script"),
    # Models
    Script("raw_model", (IDENTICAL, REFUSED), "the wrapper is not in the state"),
    Script("wrapper_inside", (IDENTICAL, REFUSED), "a survivor wraps again, as its newcomer does for the first time"),
    Script("batchnorm", (IDENTICAL,), "buffers differ between ranks: rank 0 goes back to its own copy"),
    Script("module_counter", (IDENTICAL,), "numbers that a module changes in each forward pass are no buffers"),
    Script("unused", (IDENTICAL,), "parameters take part in some steps only"),
    Script("compile", (IDENTICAL,), "the compiled module is around the wrapper"),
    Script("powersgd", (REFUSED,), "the hook's error feedback is each rank's own, and in no state"),
    Script("fp16_hook", (IDENTICAL,), "a hook without a state"),
    Script("zero_redundancy", (IDENTICAL,), "a part of the optimizer's state is on one rank alone: from copies"),
    Script("forgotten_scheduler", (REFUSED,), "it is in no state: refused by name"),
    Script("pipeline", (IDENTICAL,), "each stage is on one rank alone: from copies"),
    Script("fsdp2", (IDENTICAL,), "each rank has a part of the weights that no other has: from copies"),
    # Beside the steps
    Script(
        "evaluate_rank0",
        (IDENTICAL,),
        "peers wait in a barrier: done again, from copies of a step before",
        places=(Place("evaluation", 1), Place("step", 30)),
    ),
    Script("evaluation_before", (IDENTICAL, REFUSED), "the same before the commit: survivors count the step"),
    Script(
        "evaluation_all",
        (IDENTICAL,),
        "collectives after the commit: done again, from copies",
        places=(Place("evaluation", 1), Place("evaluation", 4)),
    ),
    Script(
        "evaluation_inner",
        (IDENTICAL,),
        "the same of the module inside of DDP, with kills in it",
        places=(Place("evaluation", 2), Place("evaluation", 5)),
    ),
    Script("upload", (IDENTICAL,), "rank 0 waits for a child, and its peers for rank 0"),
    Script("slow_checkpoint", (IDENTICAL,), "a rank writes while its peer dies"),
    Script(
        "dcp",
        (IDENTICAL,),
        "a collective checkpoint after the commit: done again, from copies",
        places=(Place("checkpoint", 1), Place("checkpoint", 4)),
    ),
    Script("setup_run_id", (IDENTICAL, REFUSED), "broadcasts in the set-up: a newcomer sets up alone"),
    Script("setup_gather", (IDENTICAL, REFUSED), "gathered objects and a reduced number in the set-up"),
    Script("snapshot", (IDENTICAL,), "a newcomer's set-up finds a newer snapshot"),
    Script("snapshot_epochs", (IDENTICAL,), "and counts its epochs from it"),
    Script("after_training", (IDENTICAL,), "collectives and a file after the training function"),
    Script("sigterm_saver", (IDENTICAL,), "no survivor gets SIGTERM"),
    Script("groups", (IDENTICAL,), "three ranks, DDP over a group of its own, metrics over another", ranks=3),
    Script("hsdp", (IDENTICAL,), "each shard has two holders", ranks=4),
    Script("pipeline_replicated", (IDENTICAL,), "each stage has two holders; the stages agree again", ranks=4),
    Script(
        "pipeline_first_step",
        (IDENTICAL,),
        "they agree in the first step, and are run once for that: done again, the step has one such run too",
        ranks=4,
        file=PROGRAMS / "pipeline_replicated.py",
        places=(Place("backward", 1), Place("averaged", 1)),
    ),
    Script("tensor_parallel", (IDENTICAL,), "each part has two holders", ranks=4),
    Script("kept_world", (IDENTICAL,), "the default group in a variable lives on"),
    Script("second_function", (IDENTICAL, RESTARTED), "a newcomer would have to pass the first one without training"),
    Script("destroy_init", (IDENTICAL,), "groups are made anew after training, in replaced ranks too"),
    Script("join_threads", (IDENTICAL,), "no thread of taskd's is seen"),
    # Nobody is left
    *(
        Script(f"behind_{moment}", (IDENTICAL,), why, file=PROGRAMS / "behind_train.py", places=(place, place))
        for moment, why, place in (
            ("after", "right behind the training function", Place("after")),
            ("evaluated", "in what all do behind it", Place("evaluated")),
            ("saved", "rank 0 waits for nobody any more", Place("saved", 1, 0)),
        )
    ),
    *(
        Script(
            f"all_{name}",
            (IDENTICAL,),
            why,
            ranks=ranks,
            nodes=nodes,
            file=PROGRAMS / "all_at_once.py",
            places=tuple(Place(moment, 10, rank) for rank in range(ranks)),
            environment=environment,
        )
        for name, why, ranks, nodes, moment, environment in (
            ("at_once", "all ranks are killed in one step", 2, 1, "backward", ()),
            ("at_once_nodes", "the same on two nodes", 4, 2, "backward", ()),
            ("between", "all ranks are killed between optimizer and commit", 2, 1, "stepped", ()),
            ("raise", "all ranks raise the same, once", 2, 1, "committed", (("RAISES_AT", "6"),)),
        )
    ),
    Script(
        "all_out_of_memory",
        (IDENTICAL,),
        "all ranks outgrow the memory of their container in one step",
        file=PROGRAMS / "all_at_once.py",
        environment=(("GROWS_AT", "13"),),
        places=(Place("committed", 20),),
        memory_mib=4096,
    ),
    Script(
        "callback_early",
        (RESTARTED,),
        "a model outside of the state has changed, and no look was due: one is taken as the fault comes",
        file=PROGRAMS / "callback_reference.py",
        places=(Place("backward", 8, 1),),
        needs_check=True,
    ),
    Script(
        "evaluation_workers_cut",
        (IDENTICAL,),
        "a fault interrupts the very first evaluation, whose loader survivors have already begun",
        file=PROGRAMS / "evaluation_workers.py",
        places=(Place("evaluation", 1),),
    ),
    Script(
        "evaluation_workers_both",
        (IDENTICAL,),
        "between two evaluations both ranks are replaced: nobody lives who has begun the loader",
        file=PROGRAMS / "evaluation_workers.py",
        places=(Place("step", 15, 0), Place("step", 20, 1)),
    ),
    Script(
        "callback_after_fault",
        (RESTARTED,),
        "it changes after a first fault; the rank that has lived through that is the next that dies",
        file=PROGRAMS / "callback_reference.py",
        places=(Place("committed", 3, 1), Place("backward", 8, 0)),
        needs_check=True,
    ),
    # Without the SDK
    Script("no_sdk", (RESTARTED,), "it starts from the beginning, as under stock torchrun"),
    Script("no_sdk_snapshot", (RESTARTED,), "it starts from its own snapshot, as under stock torchrun"),
    *(
        Script(
            shape.name, shape.allowed, shape.why, shape=shape.number, places=shape.places, needs_check=shape.needs_check
        )
        for shape in SHAPES
    ),
)


def chosen(name: str, scripts: Sequence[Script] = SCRIPTS) -> list[Script]:
    """Return the scripts with this in their name; only the one of exactly this name if there is one."""
    exact = [script for script in scripts if script.name == name]
    return exact or [script for script in scripts if name in script.name]
