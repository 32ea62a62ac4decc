"""The objects of each torch at the table's seams, as `scripts/record-seams.py` has found them in torch's wheels."""

import json
from pathlib import Path

from taskd.adaptors.seams.parts import PARTS
from taskd.adaptors.seams.seam import Fit, Look, Seam, TorchName, seams_of

FILE = Path(__file__).with_name("recorded.json")
_ABSENT = "it is not there"
Record = dict[str, dict[str, list[str]] | str]
"""The object at `module:attribute`, or why there is none."""


def all_seams() -> list[Seam]:
    """Return every seam of the table, including those of every variant."""
    return [seam for part in PARTS for seam in seams_of(part.table)]


def record(look: Look) -> Record:
    """Record the objects of one torch at the seams: all parameters, and those other names that a seam requires."""
    asked: dict[tuple[str, str], dict[Fit, set[str]]] = {}
    for seam in all_seams():
        asked.setdefault((seam.module, seam.attribute), {}).setdefault(seam.fit, set()).update(seam.names)
    found: Record = {}
    for (module, attribute), fits in sorted(asked.items()):
        there = look(module, attribute)
        found[f"{module}:{attribute}"] = (
            _ABSENT
            if isinstance(there, str)
            else {
                **({"takes": list(there.takes)} if fits.keys() & {Fit.EXACT, Fit.ACCEPTS, Fit.LACKS} else {}),
                **({"sets": sorted(fits[Fit.SETS] & set(there.sets))} if Fit.SETS in fits else {}),
                **({"has": sorted(fits[Fit.HAS] & set(there.has))} if Fit.HAS in fits else {}),
            }
        )
    return found


def read() -> dict[str, Record]:
    """Return the records of all versions."""
    records: dict[str, Record] = json.loads(FILE.read_text())
    return records


def write(records: dict[str, Record]) -> None:
    """Write these records, oldest version first."""
    ordered = dict(sorted(records.items(), key=lambda one: [int(number) for number in one[0].split(".")]))
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(one)}" for name, one in ordered.items()) + "\n}\n")


def _lines(recorded: Record) -> str:
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(there)}" for name, there in recorded.items()) + "\n}"


def look_into(recorded: Record) -> Look:
    """Return a lookup in a record, as in an installed torch. It raises `KeyError` for an unrecorded seam."""

    def look(module: str, attribute: str) -> TorchName | str:
        there = recorded[f"{module}:{attribute}"]
        if isinstance(there, str):
            return there
        return TorchName(**{kind: tuple(names) for kind, names in there.items()})

    return look
