"""Digits, data parallel: every ten steps all ranks evaluate, and the best accuracy is kept.

taskd run --nproc-per-node 2 examples/scripts/epochs_with_evaluation.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd

EPOCHS = 3


class Best:
    """Best accuracy so far, and its step."""

    def __init__(self):
        self.accuracy = 0.0
        self.step = 0

    def state_dict(self):
        return {"accuracy": self.accuracy, "step": self.step}

    def load_state_dict(self, saved):
        self.accuracy, self.step = saved["accuracy"], saved["step"]


def data():
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits)
    return TensorDataset(images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, (test_images, test_labels) = data()
    loader = DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set), drop_last=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    best = Best()
    state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, replicated={"best": best}, seed=1)

    def evaluate(step):
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        model.eval()
        with torch.no_grad():
            hits = (model(test_images[mine]).argmax(1) == test_labels[mine]).float()
        total = torch.stack([hits.sum(), torch.tensor(float(len(hits)))])
        dist.all_reduce(total)
        accuracy = (total[0] / total[1]).item()
        if accuracy > best.accuracy:
            best.accuracy, best.step = accuracy, step
        if dist.get_rank() == 0:
            print(f"step {step} accuracy {accuracy:.4f} best {best.accuracy:.4f} at step {best.step}", flush=True)

    state.after_commit(evaluate, every=10)

    @taskd.resilient(state)
    def train():
        model.train()
        for epoch in state.epochs(EPOCHS):
            loader.sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
