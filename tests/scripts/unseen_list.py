"""Scripts that were written from public programs without regard to taskd's checks: `scripts/scripts.sh --unseen`.

No detector was made for them. Their results show how much taskd finds in scripts that it does not know.
"""

from pathlib import Path

from tests.scripts.catalog import IDENTICAL, REFUSED, RESTARTED, Script
from tests.scripts.kills import Place

UNSEEN_PROGRAMS = Path(__file__).with_name("unseen")
_ANY = (IDENTICAL, REFUSED, RESTARTED)


def _unseen(name: str, why: str, *places: Place) -> Script:
    return Script(name, _ANY, why, file=UNSEEN_PROGRAMS / f"{name}.py", places=places)


UNSEEN = (
    _unseen(
        "nanogpt_micro_steps",
        "random windows and the batch fetched ahead follow from rank, step and micro-step",
        Place("backward", 50, rank=1),
        Place("evaluation", 3, rank=0),
    ),
    _unseen(
        "dino_teacher_schedules",
        "teacher and centre are in the state; schedules are arrays with an entry for each step",
        Place("backward", 17, rank=1),
        Place("stepped", 38, rank=0),
    ),
    _unseen(
        "word_lm_hidden_carried",
        "the hidden state that is carried along is a data part",
        Place("backward", 18, rank=1),
        Place("committed", 36, rank=0),
    ),
    _unseen(
        "ppo_vector_envs",
        "environments, their generator and the running mean are data parts",
        Place("backward", 42, rank=1),
        Place("rollout", 22, rank=0),
    ),
    _unseen(
        "timm_lookahead_mixup",
        "an optimizer around another one keeps slow weights in the inner one's state",
        Place("stepped", 22, rank=1),
        Place("backward", 39, rank=0),
    ),
    _unseen(
        "fairseq_grouped_batches",
        "groups of batches are cut by islice from one iterator; the last one is smaller",
        Place("backward", 28, rank=1),
        Place("backward", 52, rank=0),
    ),
    _unseen(
        "lr_finder_in_setup",
        "the set-up tries learning rates on a copy of the network",
        Place("backward", 15, rank=1),
        Place("step", 27, rank=0),
    ),
    _unseen(
        "dqn_replay_memory",
        "the replay memory is in no part",
        Place("backward", 18, rank=1),
        Place("committed", 31, rank=0),
    ),
    _unseen(
        "yolo_ema_updates",
        "the count of an average's updates is an attribute beside the module in the state",
        Place("backward", 20, rank=1),
        Place("stepped", 40, rank=1),
    ),
    _unseen(
        "annealed_lr_best_loss",
        "the best loss so far is a global, and decides on the learning rate",
        Place("backward", 30, rank=1),
        Place("epoch done", 3, rank=0),
    ),
    _unseen(
        "loss_scale_by_hand",
        "scale and counts of a loss scaler are numbers beside the state",
        Place("backward", 22, rank=1),
        Place("step", 41, rank=0),
    ),
    _unseen(
        "loss_ranked_sampler",
        "the sampler draws from a table of losses that is its own attribute",
        Place("backward", 19, rank=1),
        Place("step", 33, rank=0),
    ),
    _unseen(
        "bucket_bins_shuffled",
        "each epoch's shuffle permutes the order that the last one has left",
        Place("backward", 18, rank=1),
        Place("step", 32, rank=0),
    ),
    _unseen(
        "kl_beta_generator",
        "the weight of a loss comes from next() of a Python generator",
        Place("backward", 16, rank=1),
        Place("step", 34, rank=0),
    ),
    _unseen(
        "packed_tokens_leftover",
        "the stream's state_dict leaves out tokens of the last document",
        Place("backward", 15, rank=1),
        Place("step", 30, rank=0),
    ),
    _unseen(
        "gradnorm_initial_losses",
        "the losses of the first step are kept outside of the state and used in all later ones",
        Place("backward", 16, rank=1),
        Place("step", 33, rank=0),
    ),
    _unseen(
        "detection_warmup_inside_epoch",
        "the scheduler of the warm-up is made inside the first epoch",
        Place("backward", 6, rank=1),
        Place("step", 30, rank=0),
    ),
    _unseen(
        "transfer_learning_best_weights",
        "best accuracy and weights are names of the training function",
        Place("backward", 30, rank=1),
        Place("epoch done", 3, rank=0),
    ),
    _unseen(
        "guided_diffusion_resampler",
        "a table of losses decides later which samples are drawn",
        Place("backward", 20, rank=1),
        Place("step", 36, rank=0),
    ),
    _unseen(
        "dataset_own_generator",
        "the transforms of a dataset draw from a random.Random of their own",
        Place("backward", 17, rank=1),
        Place("step", 35, rank=0),
    ),
)
