"""A VAE whose KL term has a weight that goes up and starts again, in cycles: the next weight for each step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import WIDTH, Rows

EPOCHS, LATENT = 4, 4


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mean, self.logvar = nn.Linear(WIDTH, 20), nn.Linear(20, LATENT), nn.Linear(20, LATENT)
        self.fc3, self.fc4 = nn.Linear(LATENT, 20), nn.Linear(20, WIDTH)

    def forward(self, rows):
        hidden = torch.relu(self.fc1(rows))
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.fc4(torch.relu(self.fc3(code))), mean, logvar


def cyclical(period, rising, top=1.0):
    """Weights without end: up to the top in the rising part of each period, and there until it ends."""
    while True:
        for i in range(period):
            yield min(top, top * i / (rising * period))


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(1)
model = DistributedDataParallel(VAE())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
betas = cyclical(period=20, rising=0.6)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


def loss_function(made, rows, mean, logvar, beta):
    divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(dim=1).mean()
    return mse_loss(made, rows, reduction="sum") / len(rows) + beta * divergence


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, _ in loader:
            diary.moment("step")
            beta = next(betas)
            optimizer.zero_grad()
            made, mean, logvar = model(rows)
            loss = loss_function(made, rows, mean, logvar, beta)
            diary.saw(state.step, loss, ids, beta)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            diary.moment("stepped")
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
