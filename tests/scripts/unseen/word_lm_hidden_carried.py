"""A word language model: columns of one long text, windows in their order, the LSTM's hidden state goes along."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary

EPOCHS, WINDOWS, BPTT, COLUMNS = 4, 12, 6, 4
WORDS, DIM, HIDDEN, LAYERS = 40, 12, 16, 2


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, DIM)
        self.rnn = nn.LSTM(DIM, HIDDEN, LAYERS)
        self.decoder = nn.Linear(HIDDEN, WORDS)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden


class Reader:
    """Where this rank is in its text, and what the network remembers of it."""

    def __init__(self, text):
        used = text[: len(text) // COLUMNS * COLUMNS]
        self.columns = used.view(COLUMNS, -1).t().contiguous()
        self.rewind()

    def rewind(self):
        self.window = 0
        self.hidden = torch.zeros(LAYERS, COLUMNS, HIDDEN), torch.zeros(LAYERS, COLUMNS, HIDDEN)

    def next_window(self):
        at = self.window * BPTT
        self.window += 1
        return self.columns[at : at + BPTT], self.columns[at + 1 : at + 1 + BPTT].flatten()

    def repackage(self, hidden):
        self.hidden = tuple(part.detach() for part in hidden)

    def state_dict(self):
        return {"window": self.window, "hidden": [part.clone() for part in self.hidden]}

    def load_state_dict(self, state):
        self.window = state["window"]
        self.hidden = tuple(part.clone() for part in state["hidden"])


dist.init_process_group("gloo")
diary.moment("setup")
rank = dist.get_rank()
text = torch.randint(WORDS, ((WINDOWS * BPTT + 1) * COLUMNS,), generator=torch.Generator().manual_seed(50 + rank))
reader = Reader(text)
torch.manual_seed(1111)
model = DistributedDataParallel(RNNModel())
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=WINDOWS, gamma=0.5)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, data={"reader": reader}, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, EPOCHS * WINDOWS):
        diary.moment("step")
        if step % WINDOWS == 0:
            reader.rewind()
        words, targets = reader.next_window()
        optimizer.zero_grad()
        output, hidden = model(words, reader.hidden)
        reader.repackage(hidden)
        loss = cross_entropy(output, targets)
        diary.saw(step, loss, targets, reader.hidden[0].sum())
        loss.backward()
        diary.moment("backward")
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        scheduler.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")
        if (step + 1) % WINDOWS == 0:
            diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
