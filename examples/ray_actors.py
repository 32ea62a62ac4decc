"""Reinforcement learning with Ray actors: learners train together, and survive the kill of any of them.

    python examples/ray_actors.py --learners 2 --kill 1:20

Two learners hold one policy with DistributedDataParallel over gloo. In each step every learner sends its weights to an
actor that plays with them, and learns from the rewards (REINFORCE; the game is to name scikit-learn's digits). A spare
has imported torch and waits. When a learner dies, the spare takes its rank. The others stay alive, and the final policy
equals that of a run without a kill.
"""

import argparse
import os
import signal

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import taskd.ray

BATCH = 64
LEARNING_RATE = 1e-2
BASELINE = 0.1  # mean reward of a random policy


@ray.remote
class Game:
    """Actor that plays with given weights. Its random draws depend only on step and learner, so they are repeatable."""

    def __init__(self):
        import torch
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.answers = torch.tensor(digits.target)

    def play(self, weights, step, learner):
        import torch

        drawn = torch.Generator().manual_seed(step * 1000 + learner)
        policy = make_policy()
        policy.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
        shown = torch.randint(len(self.images), (BATCH,), generator=drawn)
        with torch.no_grad():
            actions = torch.multinomial(policy(self.images[shown]).softmax(1), 1, generator=drawn)[:, 0]
        rewards = (actions == self.answers[shown]).float()
        return self.images[shown].numpy(), actions.numpy(), rewards.numpy()


def make_policy():
    """Return a policy that maps images to the logits of ten actions."""
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))


@ray.remote
class Learner:
    """One rank of the job, or a spare that can become one."""

    def warm(self):
        """Import the modules of a learner in advance. The actor then waits."""
        import torch.nn.parallel  # noqa: F401

    def learn(self, ticket, rank, address, game, steps, kill_at):
        """Take the rank and train. The caller repeats the call in another process if this one dies."""
        import torch
        import torch.distributed as dist

        agent = taskd.agent(ticket, rank)  # a spare gets here after its predecessor's death
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=agent.world_size)
        policy = make_policy()
        model = torch.nn.parallel.DistributedDataParallel(policy)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        state = taskd.TrainState(model=model, optimizer=optimizer)

        @taskd.resilient(state)
        def train():
            earned = 0.0
            while state.step < steps:
                weights = {name: value.numpy() for name, value in policy.state_dict().items()}
                images, actions, rewards = map(torch.tensor, ray.get(game.play.remote(weights, state.step, rank)))
                chances = torch.distributions.Categorical(logits=model(images))
                loss = -(chances.log_prob(actions) * (rewards - BASELINE)).mean()
                optimizer.zero_grad()
                loss.backward()
                if state.step == kill_at and not agent.joins:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                earned = rewards.mean().item()
                state.commit(loss.detach())
            return earned

        earned = train()
        dist.destroy_process_group()
        total = sum(parameter.double().sum().item() for parameter in policy.parameters())
        return {"rank": rank, "pid": os.getpid(), "reward": round(earned, 3), "weights": total.hex()}


def free_port():
    """Return a free port of this machine."""
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def run(learners, steps, kills):
    """Train, with a spare in reserve; return each learner's final report."""
    group = placement_group([{"CPU": 1}] * (learners + 2), strategy="PACK")
    ray.get(group.ready())

    def placed(kind):
        return kind.options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()

    manager = taskd.ray.manager(learners)
    address = f"tcp://{ray.util.get_node_ip_address()}:{free_port()}"
    game, spare = placed(Game), placed(Learner)
    spare.warm.remote()

    def begin(learner, rank, kill_at=None):
        return learner.learn.remote(manager.ticket, rank, address, game, steps, kill_at)

    active = {rank: placed(Learner) for rank in range(learners)}  # an actor ends when nothing holds its handle
    running = {begin(learner, rank, kills.get(rank)): rank for rank, learner in active.items()}
    told = []
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        rank = running.pop(done)
        try:
            told.append(ray.get(done))
        except RayActorError:
            print(f"learner {rank} has died: the spare takes its rank", flush=True)
            active[rank], spare = spare, placed(Learner)
            running[begin(active[rank], rank)] = rank
            spare.warm.remote()
    manager.close()
    return sorted(told, key=lambda one: one["rank"])


def main():
    """Parse the command line, train, and print each learner's report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill", action="append", default=[], metavar="RANK:STEP", help="SIGKILL this learner there")
    args = parser.parse_args()
    kills = {int(rank): int(step) for rank, step in (kill.split(":") for kill in args.kill)}
    ray.init(num_cpus=args.learners + 2, include_dashboard=False, object_store_memory=80 << 20)
    try:
        for told in run(args.learners, args.steps, kills):
            print(told, flush=True)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
