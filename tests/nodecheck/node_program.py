"""One node's side of a check, from warm processes: `node_program.py RESULTS STORE_PORT ORDERS`.

Forks one process for each order of the JSON list ORDERS, with a store at STORE_PORT unless that is 0, and writes their
answers to RESULTS. `RESULTS.forking` is there when the imports are done.
"""

import contextlib
import sys
from pathlib import Path

import msgspec

from taskd.adaptors.nodecheck.local import check_node, quiet_imports, store_process
from taskd.wire.probes import ProbeOrder


def main() -> None:
    results, port = Path(sys.argv[1]), int(sys.argv[2])
    orders = msgspec.json.decode(sys.argv[3], type=list[ProbeOrder])
    quiet_imports()
    with store_process(port) if port else contextlib.nullcontext():
        Path(f"{results}.forking").touch()
        found = check_node(orders)
    part = Path(f"{results}.part")
    part.write_bytes(msgspec.json.encode(found))
    part.rename(results)


if __name__ == "__main__":
    main()
