"""Megatron's core, two replicas: a loop, with one model under taskd and another one without it."""

import logging
import warnings
from typing import Any

import torch
import torch.distributed as dist

import taskd
from benchmarks.trainers.work import FEATURES, ROWS, Stopwatch, Turn
from tests.trainers.programs import megatron_on_cpu

warnings.filterwarnings("ignore")
logging.getLogger("megatron").setLevel(logging.ERROR)


class _Loop:
    def __init__(self, watch: Stopwatch) -> None:
        from megatron.core import optimizer as optimizers
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.enums import ModelType
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
        from megatron.core.transformer import TransformerConfig

        self._watch = watch
        config = TransformerConfig(
            num_layers=2,
            hidden_size=FEATURES,
            num_attention_heads=4,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
            bias_dropout_fusion=False,
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
        )
        gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=256, max_sequence_length=_LENGTH)
        gpt.model_type = ModelType.encoder_or_decoder
        self.model = [DistributedDataParallel(config, DistributedDataParallelConfig(), gpt)]
        self.model[0].broadcast_params()
        self.optimizer = optimizers.get_megatron_optimizer(
            optimizers.OptimizerConfig(optimizer="adam", lr=1e-3, min_lr=1e-4, clip_grad=1.0), self.model
        )
        self.scheduler = OptimizerParamScheduler(
            self.optimizer,
            init_lr=0.0,
            max_lr=1e-3,
            min_lr=1e-4,
            lr_warmup_steps=24,
            lr_decay_steps=100_000,
            lr_decay_style="cosine",
            start_wd=0.01,
            end_wd=0.1,
            wd_incr_steps=100_000,
            wd_incr_style="linear",
        )

    def step(self) -> None:
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.model[0].zero_grad_buffer()
        self.optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(()),
            model=self.model,
            num_microbatches=1,
            seq_length=_LENGTH,
            micro_batch_size=ROWS,
            forward_only=False,
        )
        finalize_model_grads(self.model)
        updated, _, _ = self.optimizer.step()
        if updated:
            self.scheduler.step(increment=ROWS)

    def _forward(self, _batches: Any, chunk: Any) -> tuple[Any, Any]:
        self._watch.step()
        output = chunk(_TEXT[:, :-1], _PLACES, _MASK, labels=_TEXT[:, 1:])
        return output, lambda losses: (losses.mean(), {"loss": losses.mean().detach()})


_LENGTH = 16
_TEXT = torch.arange(ROWS * (_LENGTH + 1)).reshape(ROWS, -1) % 256
_MASK = torch.tril(torch.ones(1, 1, _LENGTH, _LENGTH)) < 0.5
_PLACES = torch.arange(_LENGTH).repeat(ROWS, 1)


class MegatronTurns:
    """Turns of `steps` steps each."""

    def __init__(self, watch: Stopwatch, _folder: str, steps: int) -> None:
        dist.init_process_group("gloo")
        megatron_on_cpu.install()
        from megatron.core import parallel_state, tensor_parallel

        import taskd.megatron

        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(7)
        self._watch, self._steps = watch, steps
        self._plain, self._ours = _Loop(watch), _Loop(watch)
        self._state = taskd.megatron.state(self._ours.model, self._ours.optimizer, self._ours.scheduler)

    def __call__(self, *, ours: bool) -> Turn:
        """Train for one turn, with taskd if `ours`."""
        turn = self._watch.begin()
        if ours:
            taskd.resilient(self._state)(self._train)()
        else:
            for _ in range(self._steps):
                self._plain.step()
        return turn

    def _train(self) -> None:
        for _ in range(self._steps):
            self._ours.step()
            self._state.commit()
