"""DQN: transitions go to a memory that is filled before the training, batches are drawn from it, a
target net follows.
"""

import copy
import math
import random
from collections import deque, namedtuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary

STEPS, PLAYED, BATCH, GAMMA, TAU = 44, 4, 16, 0.95, 0.05
SEEN, ACTIONS, FILLED = 5, 3, 48

Transition = namedtuple("Transition", ("seen", "action", "following", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *transition):
        self.memory.append(Transition(*transition))

    def sample(self, number):
        return random.sample(self.memory, number)

    def __len__(self):
        return len(self.memory)


class Env:
    """A point that is to be held near the middle."""

    def __init__(self):
        self.pushes = 0.5 * torch.randn(ACTIONS, SEEN, generator=torch.Generator().manual_seed(5))

    def reset(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.point = torch.randn(SEEN, generator=self.generator)
        return self.point

    def step(self, action):
        self.point = 0.95 * self.point + self.pushes[action] + 0.05 * torch.randn(SEEN, generator=self.generator)
        return self.point, -self.point.square().mean()


dist.init_process_group("gloo")
diary.moment("setup")
rank, world = dist.get_rank(), dist.get_world_size()
random.seed(10 + rank)
torch.manual_seed(0)
policy_net = DistributedDataParallel(nn.Sequential(nn.Linear(SEEN, 16), nn.ReLU(), nn.Linear(16, ACTIONS)))
target_net = copy.deepcopy(policy_net.module).requires_grad_(False)
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
env, memory = Env(), ReplayMemory(160)
state = taskd.TrainState(policy=policy_net, target=target_net, optimizer=optimizer, seed=1)


def select_action(seen, step):
    threshold = 0.05 + 0.85 * math.exp(-step / 15)
    if random.random() < threshold:
        return random.randrange(ACTIONS)
    with torch.no_grad():
        return int(policy_net.module(seen).argmax())


def play(seed, step, number):
    seen = env.reset(seed)
    for _ in range(number):
        action = select_action(seen, step)
        following, reward = env.step(action)
        memory.push(seen, action, following, reward)
        seen = following


play(90_000 + rank, 0, FILLED)
diary.moment("setup done")


def optimize_model(step):
    batch = Transition(*zip(*memory.sample(BATCH), strict=True))
    actions = torch.tensor(batch.action)[:, None]
    values = policy_net(torch.stack(batch.seen)).gather(1, actions).squeeze(1)
    with torch.no_grad():
        best = target_net(torch.stack(batch.following)).max(1).values
    loss = smooth_l1_loss(values, torch.stack(batch.reward) + GAMMA * best)
    diary.saw(step, loss, len(memory))
    optimizer.zero_grad()
    loss.backward()
    diary.moment("backward")
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        play(step * world + rank, step, PLAYED)
        optimize_model(step)
        diary.moment("stepped")
        with torch.no_grad():
            for slow, fast in zip(target_net.parameters(), policy_net.module.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(policy_net, optimizer, target_net, step=state.step)
diary.leave()
