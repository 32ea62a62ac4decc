"""Learners that are actors of Ray, each a process with a rank: a policy for scikit-learn's digits, by REINFORCE.

Plain Ray restarts a learner that dies and runs its method anew (`max_restarts`, `max_task_retries`). With taskd it
takes the rank of the dead one, and the others stay.
"""

import os
import shutil
import tempfile

import ray
from sklearn.datasets import load_digits

from tests.launch import free_port
from tests.trainers.programs.moments import PLAIN

RANKS = int(os.environ.get("SCENE_RANKS", "2"))


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Learner:
    def run(self, rank, address, ticket, images, answers):
        os.environ["RANK"] = str(rank)
        from tests.trainers.programs import ray_policy

        return ray_policy.learn(rank, RANKS, address, ticket, images, answers)


def main():
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(num_cpus=RANKS, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=folder)
    manager, ticket = None, None
    try:
        if not PLAIN:
            import taskd

            manager = taskd.manager(RANKS)
            ticket = manager.ticket
        address = f"tcp://127.0.0.1:{free_port()}"
        learners = [Learner.remote() for _ in range(RANKS)]
        data = [ray.put(array) for array in load_digits(return_X_y=True)]
        print(ray.get([learner.run.remote(rank, address, ticket, *data) for rank, learner in enumerate(learners)]))
        for learner in learners:
            ray.kill(learner)
    finally:
        ray.shutdown()
        if manager is not None:
            manager.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
