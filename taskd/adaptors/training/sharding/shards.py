"""Tensors of which a rank has only a part: how such parts are named, sent and put together again.

Rules:

1. A part is a `DTensor`: FSDP2, HSDP, tensor parallel, or the script's own. Its *spec* (mesh, placements, shape) is
   never sent. Ranks that run the same script have the same sharded tensors in the same order. So a tensor in transit
   names the one whose spec it has. A parameter and its optimizer states are put together with the receiver's mesh.
2. The name of a rank's part has its coordinates in the mesh dimensions along which something is sharded, and no others.
   So ranks with the same name differ only in replicated dimensions.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from taskd.adaptors.groups.rows import MeshRows, Sharded, find_rows
from taskd.adaptors.seams.parts import IN_PIPELINES
from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.inflight import pipelining
from taskd.adaptors.training.inflight.fsdp2 import data_dimensions, sharded_parameters
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.own_state import own_state
from taskd.adaptors.training.sharding.partitions import inner_of, partitions, share_of


def is_part(tensor: Any) -> bool:
    """Return whether this rank has only a part of the tensor."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor. It shares the tensor's memory."""
    found: torch.Tensor = tensor._local_tensor if is_part(tensor) else tensor
    return found.detach()


class Specs:
    """The sharded tensors of a training state, in the order that all its ranks have."""

    def __init__(self, parts: Parts) -> None:
        found: list[Any] = sharded_parameters(parts.modules)
        for module in parts.modules:
            found += [*module.parameters(), *module.buffers()]
        for optimizer in parts.optimizers:
            found += [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._known = list({id(tensor): tensor for tensor in found if is_part(tensor)}.values())
        self._places: dict[Any, int] = {}
        for index, tensor in enumerate(self._known):
            self._places.setdefault(tensor._spec, index)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known)

    def index(self, tensor: Any) -> int:
        """Return the place of a tensor with the same spec. Raises `TypeError` if there is none."""
        place = self._places.get(tensor._spec)
        if place is not None:
            return place
        raise TypeError(
            f"a sharded tensor of shape {tuple(tensor.shape)} ({tensor.placements}) is sharded as no parameter of the "
            "state is; expected one that is sharded as a parameter"
        )

    def make(self, index: int, part: torch.Tensor) -> torch.Tensor:
        """Put a tensor together from `part` and the spec of the one at `index`. Raises `ValueError` if they misfit."""
        if not 0 <= index < len(self._known):
            raise ValueError(
                f"the peer's tensor is sharded as its number {index}, and this rank has {len(self._known)}"
            )
        like = self._known[index]
        if part.shape != like._local_tensor.shape:
            raise ValueError(f"the peer's part has shape {tuple(part.shape)}, this rank's {tuple(local(like).shape)}")
        from torch.distributed.tensor import DTensor

        made: torch.Tensor = DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return made


def name_of(parts: Parts) -> str:
    """Return the name of a rank's part of the job's state, from torch's description; "" for all of the state.

    Ranks with the same name have the same part, if that description is complete: see `Replicas` for the proof.
    """
    coordinates: dict[str, set[int]] = {}
    details: list[object] = []
    for tensor in Specs(parts):
        mesh = tensor.device_mesh
        at = mesh.get_coordinate()
        names = mesh.mesh_dim_names or [f"dimension {number}" for number in range(mesh.ndim)]
        for number, placement in enumerate(tensor.placements):
            if not placement.is_replicate():
                where = -1 if at is None else at[number]
                coordinates.setdefault(names[number], set()).add(where)
                details.append((tuple(tensor.shape), str(tensor.dtype), str(placement), names[number], where))
    stages = pipelining.stages_of(parts)
    if stages and not IN_PIPELINES.misfit():
        coordinates["stage"] = {stage.stage_index for stage in stages}
    for number, zero in enumerate(partitions(parts.optimizers)):
        rank, of = share_of(zero)
        coordinates[f"zero{number or ''}"] = {rank}
        details.append((of, [tuple(p.shape) for group in inner_of(zero).param_groups for p in group["params"]]))
    for part in library_parts(parts):
        coordinates.update({dimension: {where} for dimension, where in part.coordinates.items()})
    if not coordinates:
        return ""
    told = ",".join(f"{name}={'+'.join(map(str, sorted(where)))}" for name, where in sorted(coordinates.items()))
    return f"{told} {hashlib.blake2b(repr(details).encode(), digest_size=4).hexdigest()}"


def library_parts(parts: Parts) -> list[LibraryPart]:
    """Return the parts that adapters of libraries have given to the state."""
    return [part for part in parts.replicated.values() if isinstance(part, LibraryPart)]


def rows_of(parts: Parts, size: int) -> MeshRows | str | None:
    """Return the sets of ranks that hold one whole replica together, from the mesh; None without a mesh.

    Return the reason if they are not known. `size`: ranks of the whole job; 0: as many as have started.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for optimizer in parts.optimizers:
        told = own_state(optimizer)
        if told is not None and told.needs_all:
            return f"a {type(optimizer).__name__} counts on all ranks that it was made with"
    for zero in partitions(parts.optimizers):
        return f"a {type(zero).__name__} divides its state among all ranks of its group"
    for part in library_parts(parts):
        if part.no_rows:
            return part.no_rows
    known: dict[tuple[int, frozenset[str]], Sharded] = {}
    for tensor in Specs(parts):
        mesh = tensor.device_mesh
        cut = [
            at for at, placement in enumerate(tensor.placements) if not placement.is_replicate() and mesh.size(at) > 1
        ]
        names = mesh.mesh_dim_names or [""] * mesh.ndim
        thing = Sharded(mesh, frozenset(names[at] for at in cut))
        known.setdefault((id(mesh), thing.cut), thing)
    things = [*known.values()]
    things += [Sharded(None, frozenset(), stage.group) for stage in pipelining.stages_of(parts) if stage.group_size > 1]
    of_data = data_dimensions(parts.modules)
    of_model = {name for thing in things for name in thing.cut} - of_data
    begun = dist.get_world_size()
    return find_rows(things, of_model, begun if size in (0, begun) else 0)


def digest_of(parts: Parts) -> str:
    """Return a digest of every parameter that an optimizer trains; of sharded ones, of this rank's part.

    Parameters that are not trained may differ between ranks.
    """
    return digest(trained(parts), size_bytes=4)


def trained(parts: Parts) -> list[torch.Tensor]:
    """Return every parameter that an optimizer trains, once; of sharded ones, this rank's part."""
    known = {id(p): p for optimizer in parts.optimizers for group in optimizer.param_groups for p in group["params"]}
    return list(map(local, known.values()))
