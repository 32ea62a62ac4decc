"""The program of each worker of `ray_train`."""

import tempfile
from pathlib import Path

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from tests.scripts import diary
from tests.trainers.programs import moments
from tests.trainers.programs.ray_policy import sdk

STEPS, BATCH, EVERY = 12, 16, 4


class Digits:
    """One worker's part in the job."""

    def __init__(self, images, answers):
        context = ray.train.get_context()
        self.rank, self.size = context.get_world_rank(), context.get_world_size()
        self.images, self.answers = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(answers)
        torch.manual_seed(7)
        hidden = (torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1))
        self.net = torch.nn.Sequential(*hidden, torch.nn.Linear(32, 10))
        self.model = ray.train.torch.prepare_model(self.net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.accuracy = 0.0
        self.report = ray.train.report
        torch.manual_seed(100 + self.rank)

    def step(self):
        choice = torch.randint(len(self.answers), (BATCH,))
        self.optimizer.zero_grad()
        logits = self.model(self.images[choice])
        logits.register_hook(moments.into_backward)
        loss = torch.nn.functional.cross_entropy(logits, self.answers[choice])
        loss.backward()
        self.optimizer.step()
        return loss.detach(), choice.tolist()

    def evaluate(self, step):
        moments.moment("evaluation")
        self.model.eval()
        with torch.no_grad():
            found = self.net(self.images[self.rank :: self.size]).argmax(1)
        right = (found == self.answers[self.rank :: self.size]).sum().double()
        dist.all_reduce(right)
        self.model.train()
        self.accuracy = right.item() / len(self.answers)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if self.rank == 0:
                moments.moment("checkpoint")
                torch.save(self.net.state_dict(), Path(folder) / "model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            self.report({"step": step, "accuracy": self.accuracy}, checkpoint=checkpoint)


def train(config):
    diary.RANK = ray.train.get_context().get_world_rank()  # Ray has imported it before there was one
    digits = Digits(*ray.get(config["data"]))
    state_class, resilient = sdk()
    own = {}
    if not moments.PLAIN:
        import taskd.ray

        own = {"reports": taskd.ray.TrainReports()}
        digits.report = own["reports"].report
    state = state_class(model=digits.model, optimizer=digits.optimizer, data=own)
    state.after_commit(digits.evaluate, every=EVERY)

    @resilient(state)
    def loop():
        while state.step < STEPS:
            moments.at(state.step + 1)
            loss, choice = digits.step()
            diary.saw(state.step, loss.item(), choice)
            state.commit(loss)

    loop()
    diary.finish(digits.net, digits.optimizer, accuracy=digits.accuracy)
