"""torchtitan, FSDP2 over all ranks: two trainers, one of them under taskd. Each turn is a `train()` of some steps."""

import sys
from typing import Any

from benchmarks.trainers.work import Stopwatch, Turn

_ARGUMENTS = [
    *("--model.name", "letters", "--model.flavor", "small", "--training.dataset", "letters"),
    *("--training.local_batch_size", "2", "--training.global_batch_size", "4", "--training.seq_len", "24"),
    *("--parallelism.data_parallel_shard_degree", "2", "--debug.seed", "3", "--training.steps", "1000000"),
    *("--metrics.log_freq", "10", "--lr_scheduler.warmup_steps", "3"),
]


class TitanTurns:
    """Turns of two trainers. `folder` is their dump folder."""

    def __init__(self, watch: Stopwatch, folder: str, steps: int) -> None:
        argv, sys.argv = sys.argv, [sys.argv[0], *_ARGUMENTS, "--job.dump_folder", folder]
        try:
            from tests.trainers.programs import titan_letters  # noqa: F401 - it registers "letters"

            # isort: split
            from torchtitan.config import ConfigManager
            from torchtitan.train import Trainer

            from taskd.titan import resilient
        finally:
            sys.argv = argv

        class Timed(Trainer):  # type: ignore[misc]
            def forward_backward_step(self, **given: Any) -> Any:
                watch.step()
                return super().forward_backward_step(**given)

        def config() -> Any:
            return ConfigManager().parse_args([*_ARGUMENTS, "--job.dump_folder", folder])

        self._watch, self._steps = watch, steps
        self._trainers = {True: resilient(Timed, backup_every=0)(config())}
        Timed.init_distributed = lambda _self: self._trainers[True].parallel_dims  # there is one process group already
        self._trainers[False] = Timed(config())
        for trainer in self._trainers.values():
            trainer.job_config.training.steps = 0

    def __call__(self, *, ours: bool) -> Turn:
        """Train for one turn, with taskd if `ours`."""
        trainer = self._trainers[ours]
        trainer.job_config.training.steps += self._steps
        turn = self._watch.begin()
        trainer.train()
        return turn
