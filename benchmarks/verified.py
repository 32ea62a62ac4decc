"""Cost to a step of waiting for all of NCCL's results before the optimizer changes anything.

Run as `python -m benchmarks.verified --json` on a machine with an accelerator. The floor is the same loop in the same
process without this wait, in turns: DDP over NCCL with one rank, AdamW, autocast to bfloat16. Nothing else in a step
waits for the device, with the wait or without. After the wait, the optimizer's kernels are launched into an idle
device. Times are those of a whole turn, at whose end the device is done.
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.launch import free_port

TURNS, STEPS = 10, 10
SIZES = {"small": (4, 256, 16, 128), "medium": (12, 768, 16, 512), "large": (24, 1024, 16, 1024)}
"""Each model's layers, width, number of sequences, and their length."""


def trained(layers: int, width: int, rows: int, length: int, *, fused: bool) -> Any:
    """Return a function that makes one training step of a transformer."""
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    network = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    batch = torch.randn(rows, length, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def turn_ms(step: Any) -> float:
    """Make a turn; return the mean time of its steps in milliseconds."""
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun_s) * 1e3 / STEPS


def measure(size: str, *, fused: bool) -> dict[str, Any]:
    """Make turns with the wait and without; return the figures of one model."""
    from taskd.adaptors.groups.nccl import Verified

    verified = Verified(lambda: [dist.group.WORLD], lambda: None)
    step = trained(*SIZES[size], fused=fused)
    for _ in range(2):
        turn_ms(step)
    without, added = [], []
    for _ in range(TURNS):
        without.append(turn_ms(step))
        assert verified.begin(), "there is no group of NCCL"
        added.append(turn_ms(step) - without[-1])
        verified.end()
    floor_ms, more_ms = statistics.median(without), statistics.median(added)
    return {
        "model": size,
        "optimizer": "fused" if fused else "foreach",
        "step_ms": round(floor_ms, 3),
        "added_ms": round(more_ms, 3),
        "added_percent": round(100 * more_ms / floor_ms, 2),
        "quarters_ms": [round(ms, 3) for ms in statistics.quantiles(added, n=4)[::2]],
    }


def main() -> None:
    """Measure and print each model with each optimizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("found no accelerator that torch can use, and there is nothing to measure without one")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    for size in SIZES:
        for fused in (True, False):
            found = measure(size, fused=fused)
            shown = "{model}, {optimizer}: a step of {step_ms} ms, and {added_ms} ms ({added_percent} %) more".format(
                **found
            )
            print(json.dumps(found) if args.json else shown, flush=True)
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
