"""A GPT of Megatron's core learns Python's own text: tensor or pipeline parallel under data parallel, on four ranks.

MEGATRON names the enabled features: distributed, overlap, bf16, fp16, pipeline; works: evaluations, checkpoints.
"""

import os
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from tests.scripts import diary
from tests.trainers.programs import megatron_on_cpu, moments, place
from tests.trainers.programs.copies import await_copies
from tests.trainers.programs.moments import PLAIN, moment

warnings.filterwarnings("ignore")
ON = frozenset(os.environ.get("MEGATRON", "").split(","))
STEPS, MICRO_BATCHES, ROWS, LENGTH = int(os.environ.get("MEGATRON_STEPS", "12")), 2, 2, 32
PIPELINED, DIVIDED, OVERLAPS = "pipeline" in ON, "distributed" in ON, "overlap" in ON
KIND = torch.bfloat16 if "bf16" in ON else torch.float16 if "fp16" in ON else torch.float32
HALF = KIND is not torch.float32

dist.init_process_group(place.BACKEND)
if place.ON_CPU:
    megatron_on_cpu.install()

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=1 if PIPELINED else 2, pipeline_model_parallel_size=2 if PIPELINED else 1
)
tensor_parallel.model_parallel_cuda_manual_seed(7)
REPLICAS, REPLICA = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()


def made_model():
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        params_dtype=KIND,
        pipeline_dtype=KIND,
        bf16=KIND is torch.bfloat16,
        fp16=KIND is torch.float16,
        # Kernels of CUDA, and scripts that are compiled at a rank's first step.
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
    )
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=256,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    ).to(place.DEVICE, KIND)
    gpt.model_type = ModelType.encoder_or_decoder
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=DIVIDED,
        overlap_grad_reduce=OVERLAPS,
        overlap_param_gather=OVERLAPS,
        grad_reduce_in_fp32=HALF,
        bucket_size=5000,
    )
    wrapped = DistributedDataParallel(config, ddp_config, gpt)
    wrapped.broadcast_params()
    config.finalize_model_grads_func = finalize
    config.no_sync_func = wrapped.no_sync
    return [wrapped]


def finalize(*args, **kwargs):
    moment("reduce")
    finalize_model_grads(*args, **kwargs)


model = made_model()
optimizer = get_megatron_optimizer(
    OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        min_lr=1e-4,
        weight_decay=0.01,
        clip_grad=1.0,
        use_distributed_optimizer=DIVIDED,
        overlap_param_gather=OVERLAPS,
        params_dtype=KIND,
        bf16=KIND is torch.bfloat16,
        fp16=KIND is torch.float16,
        initial_loss_scale=2.0**24,  # the first steps overflow, and are left out
        hysteresis=1,
        loss_scale_window=3,
    ),
    model,
)
model[0].config.grad_scale_func = optimizer.scale_loss
schedule = OptimizerParamScheduler(
    optimizer,
    init_lr=0.0,
    max_lr=1e-2,
    min_lr=1e-4,
    lr_warmup_steps=24,
    lr_decay_steps=1000,
    lr_decay_style="cosine",
    start_wd=0.01,
    end_wd=0.1,
    wd_incr_steps=1000,
    wd_incr_style="linear",
)
for one in optimizer.chained_optimizers:
    one.optimizer.register_step_pre_hook(lambda *_: moment("optimizer"))
    one.optimizer.register_step_post_hook(lambda *_: moment("stepped"))

evaluated = [0.0]
TEXT = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8).long()
MASK = torch.tril(torch.ones(1, 1, LENGTH, LENGTH, device=place.DEVICE)) < 0.5
PLACES = torch.arange(LENGTH, device=place.DEVICE).repeat(ROWS, 1)


def gather(*args, **kwargs):
    """Gather parameters after an inner optimizer's step. With kills, it fails once at MEGATRON_FAILS (rank:step)."""
    failed = diary.FOLDER / "failed"
    here = bool(os.environ["SCENE_KILLS"]) and f"{diary.RANK}:{moments._step[0]}" == os.environ["MEGATRON_FAILS"]
    if here and not PLAIN and not failed.exists():
        failed.touch()
        raise RuntimeError("a connection is lost")
    start_param_sync(*args, **kwargs)


start_param_sync, model[0].start_param_sync = model[0].start_param_sync, gather


def micro_batches(step):
    size = ROWS * (LENGTH + 1)
    for number in range(MICRO_BATCHES):
        moment("micro")
        at = ((step * MICRO_BATCHES + number) * REPLICAS + REPLICA) * size
        yield TEXT[at : at + size].reshape(ROWS, LENGTH + 1).to(place.DEVICE)


def forward_step(batches, chunk):
    rows = next(batches)
    output = chunk(rows[:, :-1], PLACES, MASK, labels=rows[:, 1:])
    if output.requires_grad:
        output.register_hook(moments.into_backward)
    return output, lambda losses: (losses.mean(), {"loss": losses.mean().detach()})


def train_step(step):
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=micro_batches(step),
        model=model,
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=ROWS,
        forward_only=False,
    )
    diary.saw(step, [one["loss"] for one in losses])
    updated, _, _ = optimizer.step()
    if updated:
        schedule.step(increment=MICRO_BATCHES * ROWS * REPLICAS)


def log(step):
    written = diary.FOLDER / f"logged-{diary.RANK}"
    if not written.exists() or int(written.read_text().splitlines()[-1].split()[0]) < step:
        groups = [(group["lr"].hex(), group["weight_decay"].hex()) for group in optimizer.param_groups]
        moments.logged(
            step,
            f"{schedule.num_steps} {optimizer.get_loss_scale().item()} {evaluated if step % 4 == 0 else None} {groups}",
        )


def evaluate(step):
    """Evaluate with all ranks after some commits. `save` is called there, too."""
    if "works" not in ON or step % 4:
        return
    model[0].eval()
    losses = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=micro_batches(100 + step),
        model=model,
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=ROWS,
        forward_only=True,
    )
    model[0].train()
    mean = sum(one["loss"] for one in losses) / MICRO_BATCHES
    moment("evaluate")
    dist.all_reduce(mean, group=parallel_state.get_data_parallel_group())
    evaluated[0] = mean.item() / REPLICAS


def save(step):
    if "works" not in ON or step % 4:
        return
    path = diary.FOLDER / f"checkpoint-{step}-{parallel_state.get_tensor_model_parallel_rank()}"
    if REPLICA == 0:
        content = {"model": model[0].state_dict_for_save_checkpoint(), "optimizer": optimizer.state_dict()}
        moment("save")
        torch.save({**content, "schedule": schedule.state_dict()}, path)
    else:
        moment("save")
    dist.barrier()
    diary.saw(f"saved {step}", diary.fingerprint(torch.load(path, weights_only=False)))


def train():
    for step in range(state.step, STEPS):
        await_copies()
        moments.at(step + 1)
        train_step(step)
        moment("commit")
        state.commit()


class Plain:
    """Replacement of a state on the plain library."""

    step = 0

    def commit(self):
        self.step += 1
        for work in (evaluate, save, log):
            work(self.step)


def with_taskd():
    import taskd
    import taskd.megatron

    copies = int(os.environ["MEGATRON_COPIES"]) if DIVIDED else None
    made = taskd.megatron.state(model, optimizer, schedule, backup_every=copies)
    for work in (evaluate, save, log):
        made.after_commit(work)
    return made, taskd.resilient(made)(train)


state, run = (Plain(), train) if PLAIN else with_taskd()
run()
if OVERLAPS:
    for chunk in model:
        chunk.start_param_sync(force_sync=True)
diary.finish(
    model[0].module,
    *(one.optimizer for one in optimizer.chained_optimizers),
    drawn=torch.rand(3),
    tracked=[state.sum() for state in tensor_parallel.get_cuda_rng_tracker().get_states().values()],
    main=[p.detach().double().sum() for group in optimizer.param_groups for p in group["params"]],
    counted=schedule.num_steps,
)
diary.leave()
