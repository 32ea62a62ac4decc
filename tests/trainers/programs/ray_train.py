"""Ray Train as its documentation teaches it: digits, a DDP model, metrics and a checkpoint at the end of each epoch."""

import os
import shutil
import tempfile

import ray
import ray.train
import ray.train.torch
from sklearn.datasets import load_digits

from tests.trainers.programs import moments

RANKS = int(os.environ.get("SCENE_RANKS", "2"))


def train_loop(config):
    from tests.trainers.programs import ray_digits

    ray_digits.train(config)


class Logger(ray.train.UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        moments.logged(metrics[0]["step"], f"{metrics[0]['accuracy'].hex()} {checkpoint is not None} {len(metrics)}")


def main():
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(num_cpus=RANKS + 1, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=folder)
    try:
        torch_config = None
        if not moments.PLAIN:
            import taskd.ray

            torch_config = taskd.ray.TaskdTorchConfig(backend="gloo")
        trainer = ray.train.torch.TorchTrainer(
            train_loop,
            train_loop_config={"data": [ray.put(array) for array in load_digits(return_X_y=True)]},
            torch_config=torch_config or ray.train.torch.TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(
                storage_path=f"{folder}/results",
                failure_config=ray.train.FailureConfig(max_failures=5),
                callbacks=[Logger()],
            ),
        )
        print("metrics", trainer.fit().metrics)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
