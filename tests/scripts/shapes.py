"""Shapes of programs that issue 36 is about, as scripts: the difficulty of each, and the places of its kills."""

from dataclasses import dataclass

from tests.scripts.grades import Grade
from tests.scripts.kills import Place

_EXACT = (Grade.IDENTICAL,)
_NAMED = Grade.IDENTICAL, Grade.REFUSED
"""Grades of shapes whose ranks all start anew today, after attempts in vain and without a warning beforehand."""


@dataclass(frozen=True)
class Shape:
    """An instance of a shape, by its name in `programs`.

    Args:
        number: number of the shape in the issue's list; 0: it was found later. A shape may have several scripts.
        name: name of the script.
        why: the difficulty of the shape.
        places: where its kills strike.
        needs_check: only the self-check finds it. Without the self-check it ends otherwise than allowed.
        allowed: results that it may have: anything but silence.
    """

    number: int
    name: str
    why: str
    places: tuple[Place, ...]
    needs_check: bool = False
    allowed: tuple[Grade, ...] = (Grade.IDENTICAL, Grade.REFUSED, Grade.RESTARTED)


SHAPES = (
    Shape(
        1,
        "split_momentum",
        "each rank has another part of the optimizer's state",
        (Place("step", 12, rank=0), Place("step", 26, rank=1)),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(
        2,
        "sharpness_aware",
        "the optimizer inside of the one in the state has the momentum",
        (Place("climbed", 10), Place("step", 25)),
        needs_check=True,
    ),
    Shape(
        3,
        "callback_reference",
        "a model of a callback's follows the trained one",
        (Place("backward", 13), Place("backward", 28)),
        needs_check=True,
    ),
    Shape(
        4,
        "callback_shadow",
        "tensors of a callback's follow the trained ones",
        (Place("backward", 15),),
        needs_check=True,
    ),
    Shape(5, "early_stopping", "a count beside tensors that stay, behind an epoch", (Place("counted", 1),)),
    Shape(
        6,
        "early_stopping_parts",
        "a list beside tensors that stay, behind an epoch, at the second fault",
        (Place("judged", 2, rank=1), Place("judged", 5, rank=0)),
    ),
    Shape(
        7,
        "averaged_epochs",
        "an average that follows behind an epoch, before a barrier",
        (Place("averaged", 2),),
    ),
    Shape(
        8,
        "ema_batchnorm",
        "an average of buffers that differ from rank to rank",
        (Place("backward", 17, rank=1),),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(
        9,
        "counted_schedule",
        "a scheduler without tensors lags behind an adopted step",
        (Place("reduced", 12),),
        allowed=_EXACT,
    ),
    Shape(10, "numpy_numbers", "parts that cannot be loaded", (Place("backward", 12),), allowed=_NAMED),
    Shape(
        11,
        "lazy_metric",
        "attributes that an evaluation has made, one of them a function",
        (Place("step", 15),),
        allowed=_NAMED,
    ),
    Shape(
        12,
        "ensemble",
        "weights differ from rank to rank",
        (Place("backward", 12),),
        allowed=_EXACT,
    ),
    Shape(
        13,
        "ema_swapped_after_commit",
        "other weights stand in for the trained ones in an evaluation",
        (Place("evaluation", 2),),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(
        13,
        "ema_swapped_in_epochs",
        "the same behind an epoch",
        (Place("evaluation", 2),),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(
        14,
        "prefetcher",
        "one more batch was handed out than trained on",
        (Place("committed", 12, rank=1), Place("backward", 30)),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(
        14,
        "prefetcher_object",
        "the same, in an attribute, at an epoch's end",
        (Place("epoch done", 1, rank=0), Place("backward", 30)),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(
        14,
        "prefetcher_thread",
        "how far another thread is ahead depends on the moment",
        (Place("committed", 12, rank=1), Place("backward", 30)),
        needs_check=True,
        allowed=_NAMED,
    ),
    Shape(
        15,
        "endless_iterator",
        "the loader's only iterator was made before the state",
        (Place("backward", 20),),
        needs_check=True,
    ),
    Shape(
        16,
        "counting_wrapper",
        "a wrapper counts passes for the sampler",
        (Place("backward", 20), Place("committed", 34)),
        allowed=_EXACT,
    ),
    Shape(
        17,
        "sampler_counts_passes",
        "a sampler counts its own passes",
        (Place("backward", 20), Place("committed", 34)),
        allowed=_EXACT,
    ),
    Shape(
        18,
        "enumerate_rate",
        "the rate follows enumerate",
        (Place("backward", 20),),
        needs_check=True,
        allowed=(Grade.IDENTICAL,),
    ),
    Shape(
        18,
        "enumerate_accumulate",
        "steps are made by enumerate",
        (Place("backward", 19),),
        needs_check=True,
        allowed=(Grade.IDENTICAL,),
    ),
    Shape(
        18,
        "enumerate_critic",
        "one of two optimizers steps by enumerate",
        (Place("backward", 20),),
        needs_check=True,
        allowed=(Grade.IDENTICAL,),
    ),
    Shape(
        18,
        "enumerate_break",
        "epochs end by enumerate",
        (Place("backward", 12),),
        needs_check=True,
        allowed=(Grade.IDENTICAL,),
    ),
    Shape(
        19,
        "leftover_batch",
        "a batch is left over behind an epoch's last step",
        (Place("last of the epoch", 1),),
        needs_check=True,
    ),
    Shape(
        20,
        "loss_behind_loop",
        "names of an inner loop that may be empty",
        (Place("evaluation", 2),),
        needs_check=True,
        allowed=(Grade.IDENTICAL,),
    ),
    Shape(
        21,
        "stream_with_memory",
        "each pass over an iterable dataset depends on those before",
        (Place("backward", 20),),
        needs_check=True,
    ),
    Shape(
        22,
        "stateful_save",
        "a loader is asked for its state before the loop has set its epoch",
        (Place("save", 2),),
    ),
    Shape(
        23,
        "look_at_batch",
        "an epoch that is begun again has no batch to look at",
        (Place("epoch done", 2),),
        needs_check=True,
        allowed=_NAMED,
    ),
    Shape(
        24,
        "batch_ahead",
        "a batch in the loop's own names was handed out and not trained on",
        (Place("backward", 15),),
        needs_check=True,
        allowed=_EXACT,
    ),
    Shape(25, "seed_each_epoch", "random numbers of an epoch's beginning", (Place("backward", 20),), allowed=_EXACT),
    Shape(
        26,
        "evaluation_workers",
        "a newcomer's first evaluation draws a number that its peers' do not",
        (Place("backward", 20),),
        allowed=_EXACT,
    ),
    Shape(27, "collator_masks", "workers draw masks in the collator", (Place("backward", 20),)),
    Shape(
        28,
        "setup_truncates_log",
        "a newcomer's set-up empties a file",
        (Place("backward", 15, rank=0),),
        needs_check=True,
    ),
    Shape(
        28,
        "setup_first_start",
        "the set-up empties it in the first start alone",
        (Place("step", 15, rank=0),),
        allowed=_EXACT,
    ),
    Shape(
        28,
        "setup_run_folder",
        "a newcomer's set-up makes another folder",
        (Place("backward", 15, rank=0),),
        needs_check=True,
    ),
    Shape(29, "edited_module", "a newcomer reads another text", (Place("backward", 20),), needs_check=True),
    Shape(30, "worker_killed", "a worker of a loader dies, and no rank", (Place("workers", 17),)),
    Shape(31, "sparse_embedding", "sparse gradients", (Place("backward", 12),), allowed=_NAMED),
    Shape(
        0,
        "moco",
        "a key encoder gets other memory in its .data in each forward pass",
        (Place("queued", 12), Place("stepped", 25)),
    ),
    Shape(
        0,
        "loss_weights",
        "weights of losses in a table of the script's",
        (Place("backward", 20), Place("weighted", 30)),
        needs_check=True,
    ),
    Shape(
        0,
        "stochastic_depth",
        "an attribute is made from itself as each epoch begins",
        (Place("backward", 31), Place("committed", 40)),
        needs_check=True,
    ),
    Shape(
        33,
        "logged_exceptions",
        "the script logs what leads it out of its loop",
        (Place("backward", 15),),
        needs_check=True,
    ),
)
