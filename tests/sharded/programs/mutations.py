"""Ways to get the recovery of sharded models wrong, each done to the taskd of this process: a scene must notice."""

from typing import Any

from taskd.adaptors.groups import handle
from taskd.adaptors.training import replicas
from taskd.adaptors.training.inflight import fsdp2, in_flight, pipelining


def keep_gradients() -> None:
    """The gradients of unsharded parameters outlive an interrupted step."""
    drop = fsdp2.drop

    def mutated(modules: Any) -> None:
        held = [group for module in modules for group in fsdp2._groups(module)]
        kept = [(p._unsharded_param, p._unsharded_param.grad) for g in held for p in g.fsdp_params if _unsharded(p)]
        drop(modules)
        for parameter, gradient in kept:
            parameter.grad = gradient

    in_flight.fsdp2.drop = mutated


def _unsharded(parameter: Any) -> bool:
    return hasattr(parameter, "_unsharded_param")


def one_set() -> None:
    """All ranks are taken for replicas of one another."""
    replicas.name_of = lambda _parts: ""
    replicas.digest_of = lambda _parts: "all"


def leave_buffers() -> None:
    """What the stages' second agreement does to buffers stays."""
    pipelining._keep_buffers = lambda _schedule: None


def no_handle_in_meshes() -> None:
    """A mesh holds the groups of the world in which it was made."""

    class Empty(dict[str, Any]):
        def __setitem__(self, _name: str, _handle: Any) -> None:
            pass

    handle._handles = Empty()  # type: ignore[assignment]


MUTATIONS = {mutation.__name__: mutation for mutation in (keep_gradients, one_set, leave_buffers, no_handle_in_meshes)}
