"""torchrun with a health check server that prints its calls, in place of torch's one without effect."""

import time
from collections.abc import Callable

from torch.distributed import run
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.health_check_server import HealthCheckServer


class TellingServer(HealthCheckServer):
    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        super().__init__(alive_callback, port, timeout)
        self._given = alive_callback, port, timeout

    def start(self) -> None:
        alive, port, timeout = self._given
        print(f"server on {port} of {timeout} s")
        print("started")
        print("alive now" if abs(alive() - time.time()) < 10 else "not alive")

    def stop(self) -> None:
        print("stopped")


vars(local_elastic_agent)["create_healthcheck_server"] = TellingServer
run.main()
