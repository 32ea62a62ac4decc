"""Evidence as one flat table: facts by name, as in the records of a job and the command line's documents.

Rules:

1. A fact has one name, whichever part of the evidence it belongs to: names are unique across the parts.
2. Old records stay readable when the parts change. A name that is unknown here is ignored.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from taskd.core.diagnosis.evidence import Blockers, EndSigns, Evidence, Frames, RankCalls, RankPosition

_PARTS: Final[Mapping[str, type]] = {
    "end": EndSigns,
    "position": RankPosition,
    "calls": RankCalls,
    "blockers": Blockers,
    "frames": Frames,
}
_PART_OF: Final = {field.name: part for part, kind in _PARTS.items() for field in fields(kind)}
_OWN: Final = tuple(field.name for field in fields(Evidence) if field.name not in _PARTS)
FACTS: Final = (*_OWN, *_PART_OF)
"""Names of all facts."""


def flat(evidence: Evidence) -> dict[str, Any]:
    """Return every fact of the evidence by its name."""
    own = {name: getattr(evidence, name) for name in _OWN}
    return own | {name: getattr(getattr(evidence, part), name) for name, part in _PART_OF.items()}


def in_parts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an `Evidence`. Each part that has facts is a mapping of its own fields."""
    found: dict[str, Any] = {name: facts[name] for name in _OWN if name in facts}
    for name, part in _PART_OF.items():
        if name in facts:
            found.setdefault(part, {})[name] = facts[name]
    return found


def of_facts(facts: Mapping[str, Any]) -> Evidence:
    """Return the evidence that these facts describe. All other facts are unknown."""
    found = in_parts(facts)
    return Evidence(**{name: _PARTS[name](**value) if name in _PARTS else value for name, value in found.items()})
