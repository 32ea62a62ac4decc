"""A program that opens connections and never sends anything. It needs the standard library alone, and costs little.

    flooder.py HOST PORT HELD PER_SECOND

HELD connections are open at any time. Those that the manager closes are opened anew, at most `AGAIN_PER_S` of them.
In addition, PER_SECOND new ones are opened each second, and stay open until the manager closes them. "held" is printed
once HELD connections were opened. SIGTERM ends the program with a line of JSON on its work since then.
"""

import errno
import json
import resource
import select
import signal
import socket
import sys
import time

TICK_S = 0.02
AGAIN_PER_S = 1000.0
"""Twice the rate at which a manager closes connections by age, of 2,500. Bounds reconnects if it closes all at once."""
MOST_A_TICK = 200.0


class Flooder:
    """Open connections, and counts of them."""

    def __init__(self, host: str, port: int, held: int, per_second: float) -> None:
        self._address, self._aim, self._per_second = (host, port), held, per_second
        self._poll = select.epoll()
        self._held: dict[int, socket.socket] = {}
        self._more: dict[int, socket.socket] = {}
        self._began_s = 0.0
        self._again = self._due = 0.0
        self._cpu_s = 0.0
        self.over = False
        self.opened = self.closed = self.failed = 0
        self.most = 0

    def serve(self) -> dict[str, float]:
        """Flood until `over`. Return the counts since all connections were held."""
        last_s = time.monotonic()
        while not self.over:
            self._sweep()
            now_s = time.monotonic()
            self._tick(now_s - last_s)
            last_s = now_s
            self._note(now_s)
            time.sleep(TICK_S)
        seconds = max(time.monotonic() - self._began_s, 1e-9) if self._began_s else 0.0
        return {
            "seconds": round(seconds, 1), "opened": self.opened, "closed": self.closed, "failed": self.failed,
            "open_most": self.most, "cpu_s": round(time.process_time() - self._cpu_s, 2),
        }  # fmt: skip

    def _tick(self, passed_s: float) -> None:
        self._again = min(self._again + passed_s * AGAIN_PER_S, MOST_A_TICK)
        while len(self._held) < self._aim and self._again >= 1 and self._open(self._held):
            self._again -= 1
        if not self._began_s:
            return
        self._due = min(self._due + passed_s * self._per_second, MOST_A_TICK)
        while self._due >= 1 and self._open(self._more):
            self._due -= 1

    def _note(self, now_s: float) -> None:
        count = len(self._held) + len(self._more)
        if not self._began_s and self.opened >= self._aim:
            self._began_s, self._cpu_s = now_s, time.process_time()
            self.opened = self.closed = self.failed = 0
            print("held", flush=True)
        self.most = max(self.most, count)

    def _open(self, to: dict[int, socket.socket]) -> bool:
        link = socket.socket()
        link.setblocking(False)
        failure = link.connect_ex(self._address)
        if failure not in (0, errno.EINPROGRESS):
            self.failed += 1
            link.close()
            return False
        self._poll.register(link.fileno(), select.EPOLLRDHUP | select.EPOLLET)
        to[link.fileno()] = link
        self.opened += 1
        return True

    def _sweep(self) -> None:
        for number, _ in self._poll.poll(0, 10_000):
            link = self._held.pop(number, None) or self._more.pop(number, None)
            if link is not None:
                self._poll.unregister(number)
                link.close()
                self.closed += 1


def main() -> None:
    """Flood the address on the command line."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    flooder = Flooder(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))

    def end(*_: object) -> None:
        flooder.over = True

    signal.signal(signal.SIGTERM, end)
    print(json.dumps(flooder.serve()), flush=True)


if __name__ == "__main__":
    main()
