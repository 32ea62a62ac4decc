"""The ranks of a job with a device mesh that make up one whole replica of the state (a *row*), and each rank's data.

Rules:

1. A row is the unit that may be left out: the ranks that differ in no dimension along which everything is replicated. A
   world of whole rows is sound although its meshes keep their numbers. Each group along a dimension that cuts something
   has all of its ranks. Every other group has its present ranks.
2. The layout is read from one mesh that covers the job and of which all meshes that matter are slices. If there is
   none, only the reason is reported.
3. Ranks that differ along a dimension that cuts the model (tensor parallel, stages) have the same share of the global
   batch. All others have a share of their own. Where the model is not cut, a rank's share has the rank's number.
"""

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from taskd.adaptors.groups.handle import meshes_ask
from taskd.adaptors.groups.instances import instances
from taskd.wire.kinds import JobRank
from taskd.wire.state import MeshRow


class Sharded(NamedTuple):
    """A tensor or stage that is cut along dimensions of a mesh."""

    mesh: Any
    """`None` for a stage of a pipeline."""
    cut: frozenset[str]
    """Names of the dimensions along which it is cut and that are longer than 1."""
    group: Any = None
    """Group of all stages, for a stage."""


@dataclass(frozen=True)
class MeshRows:
    """The layout of a job.

    Attributes:
        names: of the mesh's dimensions.
        sizes: their lengths.
        ranks: those of the job, in the mesh's order, the last dimension first.
        cut: dimensions along which the state is cut.
        of_model: those of them whose ranks work at the same data.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    cut: frozenset[int]
    of_model: frozenset[int]

    @property
    def size(self) -> int:
        """Number of ranks in one row."""
        return prod(self.sizes[at] for at in self.cut)

    def row(self, rank: int) -> MeshRow:
        """Return the row of a rank, as it is reported."""
        at = self._coordinates(self.ranks.index(rank))
        name = ",".join(f"{self.names[one]}={at[one]}" for one in self._whole)
        return MeshRow(name=name or "all", size=self.size)

    def are_whole(self, present: Collection[int]) -> bool:
        """Return whether these ranks are whole rows."""
        known: dict[int, int] = {}
        for rank, row in self._rows().items():
            if rank in present:
                known[row] = known.get(row, 0) + 1
        return all(count == self.size for count in known.values()) and sum(known.values()) == len(present)

    def shares(self, rank: int, present: Collection[int]) -> "tuple[list[tuple[int, JobRank]], int, float]":
        """Return the shares of a rank while the ranks `present` are there.

        Each share comes with the rank that has it in the full world. The other results are the number of all shares and
        the fraction of rows that is present.
        """
        rows = self._rows()
        there = sorted({rows[one] for one in present})
        count = len(self.ranks) // self.size
        at = self._coordinates(self.ranks.index(rank))
        own = [self._share(at, row) for row in range(there.index(rows[rank]), count, len(there))]
        return (
            own,
            prod(self.sizes[one] for one in range(len(self.sizes)) if one not in self.of_model),
            len(there) / count,
        )

    @property
    def _whole(self) -> list[int]:
        return [at for at in range(len(self.sizes)) if at not in self.cut]

    def _share(self, at: Sequence[int], row: int) -> tuple[int, JobRank]:
        """Return the share, and its rank, of the position `at` in another row."""
        there = list(at)
        for one in reversed(self._whole):
            row, there[one] = divmod(row, self.sizes[one])
        rank = JobRank(self.ranks[_number(there, self.sizes, range(len(there)))])
        of_data = [one for one in range(len(there)) if one not in self.of_model]
        return (_number(there, self.sizes, of_data) if self.of_model else rank), rank

    def _rows(self) -> dict[int, int]:
        """Return the number of each rank's row."""
        whole = self._whole
        return {rank: _number(self._coordinates(at), self.sizes, whole) for at, rank in enumerate(self.ranks)}

    def _coordinates(self, number: int) -> list[int]:
        at = [0] * len(self.sizes)
        for one in reversed(range(len(at))):
            number, at[one] = divmod(number, self.sizes[one])
        return at


def _number(at: Sequence[int], sizes: Sequence[int], dimensions: Iterable[int]) -> int:
    number = 0
    for one in dimensions:
        number = number * sizes[one] + at[one]
    return number


def find_rows(things: Sequence[Sharded], of_model: Collection[str], size: int) -> MeshRows | str | None:
    """Return the rows of a job of `size` ranks, in this rank's view; the reason if unknown; None if it has no mesh.

    A size of 0 means that the job started with fewer than all ranks. `things` are all objects on a mesh; `of_model` are
    the names of dimensions that cut the model itself.
    """
    module = sys.modules.get("torch.distributed.device_mesh")
    if module is None or not (things or meshes_ask()):
        return None
    if not size:
        return "a mesh keeps its numbers, and this one was made in a world of fewer ranks than the job has"
    cutting = [thing for thing in things if thing.cut or thing.group is not None]
    if not cutting:
        return MeshRows(("rank",), (size,), tuple(range(size)), frozenset(), frozenset())
    for own in (True, False):  # most often a tensor's own mesh covers the job
        known = {id(thing.mesh): thing.mesh for thing in things if thing.mesh is not None}
        look = list(known.values()) if own else instances(module.DeviceMesh)
        meshes = [mesh for mesh in look if mesh.mesh_dim_names and sorted(_ranks(mesh)) == list(range(size))]
        for mesh in sorted(meshes, key=lambda mesh: -int(mesh.ndim)):
            found = _laid_on(mesh, cutting, of_model)
            if found is not None:
                return found
    return "a mesh keeps its numbers, and no mesh with named dimensions covers the job, of which all others are slices"


def _laid_on(mesh: Any, cutting: Sequence[Sharded], of_model: Collection[str]) -> MeshRows | None:
    """Return the rows by a mesh that covers the job; None if something that is cut does not lie on it."""
    names = tuple(mesh.mesh_dim_names)
    cut: set[str] = set()
    staged: set[str] = set()
    for thing in cutting:
        along = _cut_of(thing, mesh)
        if along is None:
            return None
        cut |= along
        staged |= along if thing.group is not None else set()
    model = frozenset(names.index(name) for name in cut if name in of_model or name in staged)
    sizes = tuple(map(int, mesh.mesh.shape))
    return MeshRows(names, sizes, tuple(_ranks(mesh)), frozenset(map(names.index, cut)), model)


def _ranks(mesh: Any) -> list[int]:
    return [int(rank) for rank in mesh.mesh.flatten().tolist()]


def _cut_of(thing: Sharded, root: Any) -> frozenset[str] | None:
    """Return the dimensions of the root along which something is cut; None if it does not lie on the root."""
    if thing.group is not None:
        along = [name for name in root.mesh_dim_names if root.get_group(name) is thing.group]
        return frozenset(along) if len(along) == 1 else None
    return thing.cut if _is_slice(thing.mesh, root) else None


def _is_slice(mesh: Any, root: Any) -> bool:
    names, of_root = mesh.mesh_dim_names, root.mesh_dim_names
    at = root.get_coordinate()
    if not names or not set(names) <= set(of_root) or at is None:
        return False
    kept = [slice(None) if name in names else at[number] for number, name in enumerate(of_root)]
    order = [[name for name in of_root if name in names].index(name) for name in names]
    sliced = root.mesh[tuple(kept)].permute(order)
    return bool(sliced.shape == mesh.mesh.shape and (sliced == mesh.mesh).all())
