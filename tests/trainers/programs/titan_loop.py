"""A user's own loop with torchtitan's pieces: its Llama, its FSDP2, its optimizers, schedulers and loader."""

import sys

import torch

from tests.scripts import diary
from tests.trainers.programs import moments

STEPS, SIZE = 12, 24
sys.argv[1:] = [  # torchtitan reads the command line when it is imported
    *("--model.name", "letters", "--model.flavor", "small", "--training.dataset", "letters"),
    *("--training.local_batch_size", "2", "--training.seq_len", str(SIZE), "--training.steps", str(STEPS)),
    *("--parallelism.data_parallel_shard_degree", "2", "--lr_scheduler.warmup_steps", "3", "--optimizer.lr", "0.01"),
    *("--job.dump_folder", str(diary.FOLDER), "--comm.init_timeout_seconds", "60"),
]

from tests.trainers.programs import titan_letters  # noqa: E402, F401 - it is what "letters" means

# isort: split
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.protocols.train_spec import get_train_spec  # noqa: E402

config = ConfigManager().parse_args(sys.argv[1:])
world_size = dist_utils.init_distributed(config.comm, base_folder=config.job.dump_folder)
dims = ParallelDims(dp_shard=2, dp_replicate=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=world_size)
rank = dims.get_mesh("batch").get_local_rank()
torch.manual_seed(3)
spec = get_train_spec("letters")
loader = spec.build_dataloader_fn(
    dp_world_size=2, dp_rank=rank, tokenizer=spec.build_tokenizer_fn(config), job_config=config
)
model_args = spec.model_args["small"]
model_args.update_from_config(config)
with torch.device("meta"):
    model = spec.model_cls(model_args)
model = spec.parallelize_fn(model, dims, config)
model.to_empty(device="cpu")
with torch.no_grad():
    model.init_weights(buffer_device=None)
optimizers = spec.build_optimizers_fn([model], config.optimizer, dims)
schedulers = spec.build_lr_schedulers_fn(optimizers, config.lr_scheduler, STEPS)
torch.manual_seed(10 + rank)


def train_step(inputs, labels):
    optimizers.zero_grad()
    predicted = model(inputs["input"])
    loss = torch.nn.functional.cross_entropy(predicted.flatten(0, 1).float(), labels.flatten())
    loss.register_hook(moments.into_backward)
    loss.backward()
    norm = dist_utils.clip_grad_norm_(model.parameters(), 1.0)
    moments.moment("optimizer")
    optimizers.step()
    schedulers.step()
    moments.moment("stepped")
    return loss.detach(), norm


def train():
    batches = iter(loader)
    for number in range(0 if moments.PLAIN else state.step, STEPS):
        moments.at(number + 1)
        inputs, labels = next(batches)
        moments.moment("forward")
        loss, norm = train_step(inputs, labels)
        diary.saw(number, loss, norm.full_tensor() if hasattr(norm, "full_tensor") else norm, labels.sum())
        if not moments.PLAIN:
            state.commit()


if moments.PLAIN:
    train()
else:
    import taskd

    state = taskd.TrainState(model=model, optimizer=optimizers, scheduler=schedulers, loader=loader, backup_every=1)
    taskd.resilient(state)(train)()
local = {name: value.to_local() if hasattr(value, "to_local") else value for name, value in model.state_dict().items()}
diary.finish(weights=diary.fingerprint(local), rates=schedulers.schedulers[0].get_last_lr())
diary.leave()
