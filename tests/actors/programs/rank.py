"""A rank that no launcher of taskd has started.

Arguments: ticket file, rank, port, thread, steps of its death, and optionally a file. With a file, the rank waits at
step `WAITS` until the file exists. It announces this by a second file beside it.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import taskd
from taskd.api.actors import Ticket

STEPS, WAITS = 12, 4


def main(ticket_file, rank, port, kills, until):
    agent = taskd.agent(Ticket.from_json(Path(ticket_file).read_text()), rank)
    print("joins" if agent.joins else "begins", flush=True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=agent.world_size)
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = taskd.TrainState(model=model, optimizer=optimizer)
    torch.manual_seed(50 + rank)

    @taskd.resilient(state)
    def train():
        while state.step < STEPS:
            if until and state.step == WAITS:
                Path(f"{until}-{rank}").touch()
                while not Path(until).exists():
                    time.sleep(0.02)
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            if state.step in kills and not agent.joins:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            state.commit(loss.detach())

    train()
    print("end", sum(p.double().sum().item() for p in net.parameters()).hex(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        {int(step) for step in sys.argv[5].split(",") if step},
        *(sys.argv[6:] or [""]),
    )
    if sys.argv[4] == "thread":
        thread = threading.Thread(target=main, args=arguments)
        thread.start()
        thread.join()
    else:
        main(*arguments)
