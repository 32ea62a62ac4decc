"""Pre-training on packed tokens: documents are strung together and cut into pieces of one length."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary

STEPS, BATCH, WINDOW, WORDS, END = 48, 3, 8, 40, 0


class PackedTokens:
    """This rank's documents, in another order each time around, as an endless row of pieces."""

    def __init__(self, rank, documents=60):
        generator = torch.Generator().manual_seed(70 + rank)
        lengths = torch.randint(5, 30, (documents,), generator=generator).tolist()
        self.documents = [torch.randint(1, WORDS, (length,), generator=generator).tolist() for length in lengths]
        self.around, self.read, self.buffer = 0, 0, []

    def _next_document(self):
        if self.read == len(self.documents):
            self.around, self.read = self.around + 1, 0
        order = torch.randperm(len(self.documents), generator=torch.Generator().manual_seed(self.around))
        self.read += 1
        return self.documents[order[self.read - 1]]

    def __iter__(self):
        return self

    def __next__(self):
        while len(self.buffer) < WINDOW + 1:
            self.buffer += [*self._next_document(), END]
        piece, self.buffer = self.buffer[: WINDOW + 1], self.buffer[WINDOW:]
        return torch.tensor(piece)

    def state_dict(self):
        return {"around": self.around, "read": self.read}

    def load_state_dict(self, state):
        self.around, self.read = state["around"], state["read"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, 12), nn.GRU(12, 16, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, WORDS)

    def forward(self, words):
        return self.head(self.drop(self.rnn(self.embed(words))[0]))


dist.init_process_group("gloo")
diary.moment("setup")
stream = PackedTokens(dist.get_rank())
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, data={"stream": stream}, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        pieces = torch.stack([next(stream) for _ in range(BATCH)])
        logits = model(pieces[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        diary.saw(step, loss, pieces)
        optimizer.zero_grad()
        loss.backward()
        diary.moment("backward")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
