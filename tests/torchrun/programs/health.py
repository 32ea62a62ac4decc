"""torchrun with a health check server that tells what is done with it, where torch has one without effect."""

import time

from torch.distributed import run
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.health_check_server import HealthCheckServer


class TellingServer(HealthCheckServer):
    def start(self) -> None:
        print(f"server on {self._port} of {self._timeout} s")
        print("started")
        print("alive now" if abs(self.alive_callback() - time.time()) < 10 else "not alive")

    def stop(self) -> None:
        print("stopped")


vars(local_elastic_agent)["create_healthcheck_server"] = TellingServer
run.main()
