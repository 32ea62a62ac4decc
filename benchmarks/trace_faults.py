"""The published fault mix, and faults drawn from it.

Rules:

1. `data/fault_mix.csv` has the figures. Its head names their sources, and the columns that are assumptions.
2. Arrivals are a Poisson process for each cause. Its rate is the cause's count in the published run over that run's
   GPU-hours, times the GPUs of this job. Correlated bursts and repeat offenders are not drawn.
3. All random properties of a fault are drawn with it, so every player of the trace gets the same faults.
"""

import csv
import random
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

DATA = Path(__file__).parent / "data"
GPU_HOURS = {"fthsdp": 678 * 83_478.0, "llama3": 419 * 50_677.0}
"""GPU-hours of each published run: its number of faults times the published GPU-hours per fault."""


class Kind(Enum):
    """First sign of a fault, which decides how the fault is played."""

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
    """One fault: time of its strike, delay of its detection, place (0 to 1 over all places), and whether it lasts."""

    at_s: float
    cause: str
    kind: Kind
    detect_s: float
    where: float
    lasting: bool


def read_mix(mix: str) -> list[Cause]:
    """Return the causes of a published run with their rates.

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
    """Return the faults of one run, in the order in which they strike."""
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
