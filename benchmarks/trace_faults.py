"""The published fault mix, and faults drawn from it.

Rules:

1. `data/fault_mix.csv` has the figures; its head says where they are from, and which of its columns are assumptions.
2. Arrivals are a Poisson process per cause: the cause's count in the published run over that run's GPU-hours, times the
   GPUs of this job. Correlated bursts and repeat offenders are not drawn.
3. All that is random about a fault is drawn with it, so that whatever plays the trace is given the same faults.
"""

import csv
import random
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

DATA = Path(__file__).parent / "data"
GPU_HOURS = {"fthsdp": 678 * 83_478.0, "llama3": 419 * 50_677.0}
"""GPU-hours in which the published run had its faults: their number times the published hours of one GPU per fault."""


class Kind(Enum):
    """How a fault shows itself, and so how it is played."""

    DEVICE = "device"
    HANG = "hang"
    BUG = "bug"
    NOTICE = "notice"
    HOST = "host"
    CORRUPTION = "corruption"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Cause:
    """One line of the mix."""

    name: str
    per_gpu_hour: float
    kind: Kind
    lasting_share: float
    detect_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when it strikes, how long nobody knows, where (0 to 1 over the places), and whether it lasts."""

    at_s: float
    cause: str
    kind: Kind
    detect_s: float
    where: float
    lasting: bool


def read_mix(mix: str) -> list[Cause]:
    """The causes of a published run with their rates.

    Raises:
        KeyError: no such run.

    """
    with (DATA / "fault_mix.csv").open() as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return [
            Cause(
                name=line["cause"],
                per_gpu_hour=int(line[f"{mix}_count"]) / GPU_HOURS[mix],
                kind=Kind(line["played_as"]),
                lasting_share=float(line["lasting_share"]),
                detect_s=(float(line["detect_s_low"]), float(line["detect_s_high"])),
            )
            for line in lines
        ]


def draw(causes: list[Cause], gpus: float, length_s: float, seed: int) -> list[Fault]:
    """The faults of one run, in the order in which they strike."""
    faults = []
    for cause in causes:
        chance = random.Random(f"{seed} {cause.name}")
        per_s = cause.per_gpu_hour * gpus / 3600
        at_s = chance.expovariate(per_s) if per_s else length_s
        while at_s < length_s:
            lasting = chance.random() < cause.lasting_share
            faults.append(
                Fault(at_s, cause.name, cause.kind, chance.uniform(*cause.detect_s), chance.random(), lasting)
            )
            at_s += chance.expovariate(per_s)
    return sorted(faults, key=lambda fault: fault.at_s)
