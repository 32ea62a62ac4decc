"""Time to form a world again: by a new gloo group, and by reconfiguring the present one (torch 2.15 and later).

Run as `python -m benchmarks.reconfigure` with such a torch. Four ranks meet in a store, form the group, and make one
all_reduce. Forming and all_reduce are timed on rank 0, 30 times each way, in one run. The floor is the new group, as
taskd makes it.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 4
ROUNDS = 30
ELEMENTS = 1000
_LOOK_S = 0.0005


def main() -> None:
    """Measure, and print medians in milliseconds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args()
    import torch
    import torch.distributed as dist

    if not hasattr(dist, "_reconfigure"):
        parser.error(f"torch {torch.__version__} has no groups that can be reconfigured, expected 2.15 or later")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        torch.multiprocessing.spawn(_rank, (store.port, str(out)), RANKS)
        found = json.loads(out.read_text())
    new, again = (statistics.median(found[way]) for way in ("new", "reconfigured"))
    if args.json:
        print(json.dumps({"new_ms": round(new, 2), "reconfigured_ms": round(again, 2), "ratio": round(again / new, 2)}))
    else:
        print(f"new group {new:.1f} ms, reconfigured {again:.1f} ms, ratio {again / new:.2f} (medians of {ROUNDS})")


def _rank(rank: int, port: int, out: str) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    numbers = torch.ones(ELEMENTS)

    def timed(name: str, form: Callable[[int], None], after: Callable[[], None]) -> list[float]:
        taken_ms = []
        for number in range(ROUNDS):
            _meet(store, f"{name}/{number}")
            began_s = time.perf_counter()
            form(number)
            dist.all_reduce(numbers)
            taken_ms.append((time.perf_counter() - began_s) * 1e3)
            _meet(store, f"{name}/{number}/done")
            after()
        return taken_ms

    def new(number: int) -> None:
        fresh = dist.PrefixStore(f"new/{number}", store)
        dist.init_process_group("gloo", store=fresh, rank=rank, world_size=RANKS)

    def reconfigured(number: int) -> None:
        torch215: Any = dist
        store.set(f"handle/{number}/{rank}", torch215._get_reconfigure_handle())
        handles = [store.get(f"handle/{number}/{peer}").decode() for peer in range(RANKS)]
        torch215._reconfigure(uuid=number + 1, handles=handles, timeout=timedelta(seconds=30)).wait()

    options: dict[str, Any] = {"enable_reconfigure": True}
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=RANKS, **options)
    found = {"reconfigured": timed("again", reconfigured, lambda: None)}
    dist.destroy_process_group()
    found["new"] = timed("new", new, dist.destroy_process_group)
    if rank == 0:
        Path(out).write_text(json.dumps(found))


def _meet(store: Any, name: str) -> None:
    store.add(name, 1)
    while store.add(name, 0) < RANKS:
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
