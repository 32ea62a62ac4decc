"""Scripts that were written from public programs without a look at what taskd checks: `scripts/scripts.sh --unseen`.

They are played as they are: what comes out shows how much of what nobody here has brought is found.
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
        "windows come from a generator made of (rank, step, micro-step), the rate from the step, and the …",
        Place("backward", 50, rank=1),
        Place("evaluation", 3, rank=0),
    ),
    _unseen(
        "dino_teacher_schedules",
        "teacher and centre (a buffer of the loss module) are in the state, all schedules are arrays …",
        Place("backward", 17, rank=1),
        Place("stepped", 38, rank=0),
    ),
    _unseen(
        "word_lm_hidden_carried",
        "hidden state and window number are a data part with a whole state_dict, and the epoch follows …",
        Place("backward", 18, rank=1),
        Place("committed", 36, rank=0),
    ),
    _unseen(
        "ppo_vector_envs",
        "environments (with their generator) and the running normaliser are data parts with whole …",
        Place("backward", 42, rank=1),
        Place("rollout", 22, rank=0),
    ),
    _unseen(
        "timm_lookahead_mixup",
        "lookahead keeps slow weights and its count in the inner optimizer's state and groups, which its …",
        Place("stepped", 22, rank=1),
        Place("backward", 39, rank=0),
    ),
    _unseen(
        "fairseq_grouped_batches",
        "the order of batches is a function of the epoch, groups are cut by islice from one iterator …",
        Place("backward", 28, rank=1),
        Place("backward", 52, rank=0),
    ),
    _unseen(
        "lr_finder_in_setup",
        "the range test is deterministic, equal on all ranks and works on a copy, and optimizer and …",
        Place("backward", 15, rank=1),
        Place("step", 27, rank=0),
    ),
    _unseen(
        "dqn_replay_memory",
        "the replay memory is in no part: a new process has the one that was filled in its set-up, and a …",
        Place("backward", 18, rank=1),
        Place("committed", 31, rank=0),
    ),
    _unseen(
        "yolo_ema_updates",
        "the average's module is in the state, but the count of its updates, which its decay follows, is …",
        Place("backward", 20, rank=1),
        Place("stepped", 40, rank=1),
    ),
    _unseen(
        "annealed_lr_best_loss",
        "best_val_loss is a global: a new process takes the next loss for the best one and does not …",
        Place("backward", 30, rank=1),
        Place("epoch done", 3, rank=0),
    ),
    _unseen(
        "loss_scale_by_hand",
        "scale and counts of the hand-written loss scaler are plain numbers beside the state: a new …",
        Place("backward", 22, rank=1),
        Place("step", 41, rank=0),
    ),
    _unseen(
        "loss_ranked_sampler",
        "the table of losses is an attribute of the sampler: a new process draws the epoch from the first …",
        Place("backward", 19, rank=1),
        Place("step", 33, rank=0),
    ),
    _unseen(
        "bucket_bins_shuffled",
        "the shuffle is seeded by the epoch but permutes the bins as the last epoch has left them: a new …",
        Place("backward", 18, rank=1),
        Place("step", 32, rank=0),
    ),
    _unseen(
        "kl_beta_generator",
        "the weight of KL comes from next() of a Python generator that counts by itself: it begins anew …",
        Place("backward", 16, rank=1),
        Place("step", 34, rank=0),
    ),
    _unseen(
        "packed_tokens_leftover",
        "the stream is a data part, but its state_dict leaves out the tokens that are left over from the …",
        Place("backward", 15, rank=1),
        Place("step", 30, rank=0),
    ),
    _unseen(
        "gradnorm_initial_losses",
        "the losses of the first step, which all later ones are compared to, are an attribute set once: a …",
        Place("backward", 16, rank=1),
        Place("step", 33, rank=0),
    ),
    _unseen(
        "detection_warmup_inside_epoch",
        "the warm-up's LinearLR is made inside the first epoch and in no part: begun again it warms up …",
        Place("backward", 6, rank=1),
        Place("step", 30, rank=0),
    ),
    _unseen(
        "transfer_learning_best_weights",
        "best accuracy and best weights are local names of the resilient function: after a fault they …",
        Place("backward", 30, rank=1),
        Place("epoch done", 3, rank=0),
    ),
    _unseen(
        "guided_diffusion_resampler",
        "the history of losses by timestep (numpy arrays changed in place) is not in the state: a new …",
        Place("backward", 20, rank=1),
        Place("step", 36, rank=0),
    ),
    _unseen(
        "dataset_own_generator",
        "the transforms draw from a random.Random of their own, which is seeded in the set-up and …",
        Place("backward", 17, rank=1),
        Place("step", 35, rank=0),
    ),
)
