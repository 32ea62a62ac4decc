"""Three steps of the critic for each of the generator, and one commit."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import WIDTH, batch_of

STEPS = 20

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
generator = DistributedDataParallel(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, WIDTH)))
critic = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 24), nn.LeakyReLU(), nn.Linear(24, 1)))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
state = taskd.TrainState(generator=generator, critic=critic, of_generator=of_generator, of_critic=of_critic, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        for turn in range(3):
            diary.moment("critic")
            ids, rows, _ = batch_of(3 * step + turn, dist.get_rank(), dist.get_world_size())
            of_critic.zero_grad()
            loss = critic(generator(torch.randn(len(rows), 8)).detach()).mean() - critic(rows).mean()
            diary.saw((step, turn), loss, ids)
            loss.backward()
            of_critic.step()
            diary.moment("critic stepped")
        of_generator.zero_grad()
        loss = -critic(generator(torch.randn(4, 8))).mean()
        diary.saw(step, loss)
        loss.backward()
        of_generator.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(generator, critic, of_generator, of_critic, step=state.step)
diary.leave()
