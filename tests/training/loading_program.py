"""A process with a black box that fetches batches: `loading_program.py BOX WORKERS`. It reports nothing else.

Sample k has 10 (k + 1) elements and takes 20 ms to make. Four batches of one sample each are four steps, of 5 ms each.
Then a thread fetches four more batches. The main thread starts again from the first, up to a fifth that fails. The
program prints the seconds that the four steps have waited.
"""

import sys
import threading
import time
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd
from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.wire.kinds import JobRank

STEPS, MAKE_S, STEP_S = 4, 0.02, 0.005


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return STEPS + 1

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(MAKE_S)
        if index == STEPS:
            raise LookupError("the last sample cannot be read")
        return {"ids": torch.zeros(10 * (index + 1)), "label": torch.zeros(1)}


def main() -> None:
    recorder = Recorder()
    recorder.attach(Path(sys.argv[1]), JobRank(0), 0)
    loader = StatefulDataLoader(Samples(), batch_size=None, num_workers=int(sys.argv[2]))
    model = torch.nn.Linear(1, 1)
    state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader)
    state._recovery.parts.meter.recorder = recorder
    recorder.phase(BoxPhase.TRAINING)
    batches = iter(loader)
    waited_s = 0.0
    for step in range(1, STEPS + 1):
        begun_s = time.monotonic()
        next(batches)
        waited_s += time.monotonic() - begun_s
        time.sleep(STEP_S)
        recorder.step(step)
    thread = threading.Thread(target=lambda: [next(other) for other in [iter(loader)] for _ in range(STEPS)])
    thread.start()
    thread.join()
    try:
        for _ in iter(loader):
            pass
    except LookupError:
        print(waited_s, flush=True)


main()
