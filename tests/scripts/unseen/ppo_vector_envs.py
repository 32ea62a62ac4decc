"""PPO: a rollout of a few environments that go on, a running mean of what is observed, passes over minibatches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary

UPDATES, ROLLOUT, PASSES, MINIBATCHES = 32, 8, 2, 2
ENVS, SEEN, ACTIONS, LONGEST = 4, 6, 3, 21


class Envs:
    """Points that are pushed; an episode ends when one is too far off, or has lasted too long."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(ENVS, SEEN, generator=self.generator)
        self.ages = torch.zeros(ENVS, dtype=torch.long)
        self.pushes = 0.3 * torch.randn(ACTIONS, SEEN, generator=torch.Generator().manual_seed(5))

    def step(self, actions):
        noise = 0.1 * torch.randn(ENVS, SEEN, generator=self.generator)
        self.points = 1.02 * self.points + self.pushes[actions] + noise
        self.ages = self.ages + 1
        rewards = -self.points.square().mean(dim=1)
        done = (rewards < -4) | (self.ages >= LONGEST)
        fresh = torch.randn(ENVS, SEEN, generator=self.generator)
        self.points = torch.where(done[:, None], fresh, self.points)
        self.ages = torch.where(done, torch.zeros_like(self.ages), self.ages)
        return self.points, rewards, done.float()

    def state_dict(self):
        return {"points": self.points, "ages": self.ages, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.points, self.ages = state["points"].clone(), state["ages"].clone()
        self.generator.set_state(state["generator"].clone())


class RunningMeanStd:
    def __init__(self):
        self.mean, self.var, self.count = torch.zeros(SEEN), torch.ones(SEEN), 1e-4

    def __call__(self, points):
        return ((points - self.mean) / (self.var + 1e-8).sqrt()).clamp(-5, 5)

    def update(self, points):
        total, delta = self.count + len(points), points.mean(dim=0) - self.mean
        within = self.var * self.count + points.var(dim=0, correction=0) * len(points)
        self.var = (within + delta.square() * self.count * len(points) / total) / total
        self.mean = self.mean + delta * len(points) / total
        self.count = total

    def state_dict(self):
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state):
        self.mean, self.var, self.count = state["mean"].clone(), state["var"].clone(), state["count"]


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SEEN, 16), nn.Tanh())
        self.actor, self.critic = nn.Linear(16, ACTIONS), nn.Linear(16, 1)

    def forward(self, seen):
        inner = self.trunk(seen)
        return self.actor(inner), self.critic(inner).squeeze(-1)


dist.init_process_group("gloo")
diary.moment("setup")
envs, normalise = Envs(seed=100 + dist.get_rank()), RunningMeanStd()
torch.manual_seed(0)
agent = DistributedDataParallel(Agent())
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / UPDATES)
state = taskd.TrainState(
    model=agent,
    optimizer=optimizer,
    scheduler=scheduler,
    data={"envs": envs, "normalise": normalise},
    seed=1,
)
diary.moment("setup done")


@torch.no_grad()
def collect():
    seen, actions, old, values, rewards, ended = [], [], [], [], [], []
    points = envs.points
    for _ in range(ROLLOUT):
        normalise.update(points)
        seen.append(normalise(points))
        logits, value = agent.module(seen[-1])
        policy = Categorical(logits=logits)
        actions.append(policy.sample())
        old.append(policy.log_prob(actions[-1]))
        values.append(value)
        points, reward, done = envs.step(actions[-1])
        rewards.append(reward)
        ended.append(done)
    _, following = agent.module(normalise(points))
    advantages, gathered = [], torch.zeros(ENVS)
    for t in reversed(range(ROLLOUT)):
        delta = rewards[t] + 0.99 * following * (1 - ended[t]) - values[t]
        gathered = delta + 0.99 * 0.95 * (1 - ended[t]) * gathered
        advantages.insert(0, gathered)
        following = values[t]
    advantages = torch.cat(advantages)
    return torch.cat(seen), torch.cat(actions), torch.cat(old), advantages, advantages + torch.cat(values)


@taskd.resilient(state)
def train():
    for update in range(state.step, UPDATES):
        diary.moment("step")
        seen, actions, old, advantages, returns = collect()
        diary.moment("rollout")
        diary.saw(update, actions, returns.sum())
        for _ in range(PASSES):
            for chosen in torch.randperm(len(seen)).chunk(MINIBATCHES):
                logits, values = agent(seen[chosen])
                policy = Categorical(logits=logits)
                ratio = (policy.log_prob(actions[chosen]) - old[chosen]).exp()
                gain = advantages[chosen]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = 0.5 * (values - returns[chosen]).square().mean() - clipped - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                diary.moment("backward")
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        scheduler.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(agent, optimizer, scheduler, step=state.step)
diary.leave()
