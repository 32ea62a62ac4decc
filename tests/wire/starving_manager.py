"""A manager whose process has no descriptor left. After a line from stdin it has some again. Argument: the secret."""

import logging
import os
import resource
import select
import sys

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.runtime.links.links import STRANGER, ManagerSocket


def main() -> None:
    """Serve until stdin ends."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ManagerSocket(Address(LOOPBACK, 0), Security(sys.argv[1].encode())) as manager:
        used = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        print(manager.address.port, flush=True)
        while True:
            manager.poll(0.05)
            manager.receive()
            if select.select([sys.stdin], [], [], 0)[0]:
                if not sys.stdin.readline():
                    break
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, hard))
    print("refused", manager.refused[STRANGER], flush=True)


if __name__ == "__main__":
    main()
