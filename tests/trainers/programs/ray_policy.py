"""The program of each learner of `ray_actors`: usual DDP over gloo, with accumulation, evaluations and checkpoints."""

import contextlib

import torch
import torch.distributed as dist

from tests.scripts import diary
from tests.trainers.programs import moments

STEPS, BATCH, MICRO, EVERY = 12, 16, 2, 4


class PlainState:
    """Replacement of taskd.TrainState for the loop, on plain Ray."""

    step = 0

    def __init__(self, **_parts):
        self.works = []

    def after_commit(self, work, every=1):
        self.works.append((work, every))

    def commit(self, _loss):
        self.step += 1
        for work, every in self.works:
            if self.step % every == 0:
                work(self.step)


def sdk():
    """Return the state's class and the decorator: taskd's, or stand-ins on plain Ray."""
    if moments.PLAIN:
        return PlainState, lambda _state: lambda function: function
    import taskd

    return taskd.TrainState, taskd.resilient


class Policy:
    """One learner's part in the job."""

    def __init__(self, rank, size, images, answers):
        self.rank, self.size = rank, size
        self.images, self.answers = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(answers)
        torch.manual_seed(7)
        hidden = (torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1))
        self.net = torch.nn.Sequential(*hidden, torch.nn.Linear(32, 10))
        self.model = torch.nn.parallel.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.rewards = {}
        torch.manual_seed(100 + rank)  # each learner acts by its own random numbers

    def act(self, choice):
        """Return the loss of one micro-batch."""
        logits = self.model(self.images[choice])
        logits.register_hook(moments.into_backward)
        acted = torch.distributions.Categorical(logits=logits)
        actions = acted.sample()
        reward = (actions == self.answers[choice]).float()
        return -(acted.log_prob(actions) * (reward - 0.1)).mean() / MICRO

    def step(self):
        self.optimizer.zero_grad()
        total, seen = 0.0, []
        for micro in range(MICRO):
            choice = torch.randint(len(self.answers), (BATCH,))
            with self.model.no_sync() if micro + 1 < MICRO else contextlib.nullcontext():
                loss = self.act(choice)
                loss.backward()
            moments.moment("micro-batch")
            total += loss.item()
            seen += choice.tolist()
        self.optimizer.step()
        self.scheduler.step()
        return total, seen

    def evaluate(self, step):
        moments.moment("evaluation")
        self.model.eval()
        with torch.no_grad():
            found = self.net(self.images[self.rank :: self.size]).argmax(1)
        right = (found == self.answers[self.rank :: self.size]).sum().double()
        dist.all_reduce(right)
        self.model.train()
        self.rewards[step] = right.item() / len(self.answers)
        if self.rank == 0:
            moments.moment("checkpoint")
            part = diary.FOLDER / f"policy-{step}.pt.part"
            torch.save(self.net.state_dict(), part)
            part.rename(part.with_suffix(""))


def learn(rank, size, address, ticket, images, answers):
    if not moments.PLAIN:
        import taskd

        taskd.agent(ticket, rank)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    policy = Policy(rank, size, images, answers)
    state_class, resilient = sdk()
    state = state_class(model=policy.model, optimizer=policy.optimizer, scheduler=policy.scheduler)
    state.after_commit(policy.evaluate, every=EVERY)

    @resilient(state)
    def train():
        while state.step < STEPS:
            moments.at(state.step + 1)
            total, seen = policy.step()
            diary.saw(state.step, total, seen)
            state.commit(total)

    train()
    diary.finish(policy.net, policy.optimizer, policy.scheduler, reward=policy.rewards[STEPS])
    dist.destroy_process_group()
    return policy.rewards[STEPS]
