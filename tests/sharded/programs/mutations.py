"""Mutations that break the recovery of sharded models in the taskd of this process. A scene must detect each one."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch.distributed as dist

from taskd.adaptors.groups import handle
from taskd.adaptors.training import packing, restore
from taskd.adaptors.training.copies import copier, snapshot
from taskd.adaptors.training.inflight import fsdp2, pipelining
from taskd.adaptors.training.sharding import replicas
from taskd.adaptors.training.trust import first_step, verifying
from tests.scripts import diary


def _first(what: str) -> bool:
    """Return whether this is the job's first time. The donor depends on the progress of the ranks."""
    try:
        (diary.FOLDER / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def put(module: Any, **mutated: Any) -> None:
    for name, value in mutated.items():
        setattr(module, name, value)


def keep_gradients() -> None:
    """Let gradients of unsharded parameters outlive an interrupted step."""
    drop_step = fsdp2.drop_step

    def mutated(modules: Any) -> None:
        held = [group for module in modules for group in fsdp2._groups(module)]
        kept = [(p._unsharded_param, p._unsharded_param.grad) for g in held for p in g.fsdp_params if _unsharded(p)]
        drop_step(modules)
        for parameter, gradient in kept:
            parameter.grad = gradient

    put(fsdp2, drop_step=mutated)


def _unsharded(parameter: Any) -> bool:
    return hasattr(parameter, "_unsharded_param")


def one_set() -> None:
    """Treat all ranks as replicas of one another."""
    put(replicas, name_of=lambda _parts: "", digest_of=lambda _parts: "all")


def leave_buffers() -> None:
    """Keep the effects of the stages' second agreement on buffers."""
    put(pipelining, _keep_buffers=lambda _schedule, _is_first: None)


def no_handle_in_meshes() -> None:
    """Let a mesh keep the groups of the world in which it was made."""

    class Empty(dict[str, Any]):
        def __setitem__(self, _name: str, _handle: Any) -> None:
            pass

    put(handle, _handles=Empty())


def flip_a_bit() -> None:
    """Flip a bit of the first tensor that the job sends. This is not a mutation, but a fault that must be detected.

    The message before the tensors has a fixed length and is padded: a bit of the padding has no meaning.
    """
    send = dist.isend

    def isend(tensor: Any, receiver: int) -> Any:
        if tensor.nbytes > 4096 and tensor.nbytes != packing._FIRST_BYTES and _first("flipped"):
            tensor = tensor.clone()
            tensor[len(tensor) // 2] ^= 4
        return send(tensor, receiver)

    put(dist, isend=isend)


def donate_nan() -> None:
    """Make the first donor's state NaN when it gives it away. This is a fault that must be detected."""
    honest = packing.pack

    def pack(recovery: Any, **options: Any) -> Any:
        if _first("not finite"):
            for parameter in recovery.parts.parameters():
                parameter.data.view(-1)[:1] = float("nan")
        return honest(recovery, **options)

    put(restore, pack=pack)


def trust_the_first_step() -> None:
    """Do the same, without a check of the first step."""
    donate_nan()
    put(first_step.FirstStep, watch=lambda *_: None)


def compare_nothing() -> None:
    """Make all digests of a state equal."""
    put(verifying, digest=lambda _tensors: "the same")


def no_position() -> None:
    """Leave random numbers and data position out of copies."""
    honest = packing.pack

    def pack(*args: Any, **options: Any) -> Any:
        manifest, tensors = honest(*args, **options)
        return msgspec.structs.replace(manifest, position=b""), tensors

    put(snapshot, pack=pack)


def no_agreement() -> None:
    """Let each rank go on to the next copy as soon as its own is complete."""

    def outcome(self: Any, _store: Any, step: int) -> int:
        self.kept = step
        return int(self.tally.due_after(step, self._step(), self._every))

    put(copier.Copier, _outcome=outcome)


MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    mutation.__name__: mutation
    for mutation in (
        keep_gradients,
        one_set,
        leave_buffers,
        no_handle_in_meshes,
        flip_a_bit,
        no_position,
        no_agreement,
        donate_nan,
        trust_the_first_step,
        compare_nothing,
    )
}
