"""A generator that is trained with every third batch, by the number of the batch; the critic with each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import WIDTH, Rows

EPOCHS = 4
N_CRITIC = 3

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
generator = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, WIDTH)))
critic = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 24), nn.LeakyReLU(), nn.Linear(24, 1)))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(
    generator=generator,
    critic=critic,
    of_generator=of_generator,
    of_critic=of_critic,
    loader=loader,
    sampler=sampler,
    seed=1,
)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for i, (ids, rows, _) in enumerate(loader):
            diary.moment("step")
            of_critic.zero_grad()
            loss = critic(generator(torch.randn(len(rows), 8)).detach()).mean() - critic(rows).mean()
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            of_critic.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            if i % N_CRITIC == 0:
                of_generator.zero_grad()
                (-critic(generator(torch.randn(len(rows), 8))).mean()).backward()
                of_generator.step()
            state.commit()
            diary.moment("committed")


train()
diary.moment("after")
diary.finish(generator, critic, of_generator, of_critic, step=state.step)
diary.leave()
