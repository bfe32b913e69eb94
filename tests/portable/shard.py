"""A shard of no job yet, as a process: prints its address, and a line for every line that it reads.

`wait` is answered when a follower has all that is here.
"""

from __future__ import annotations

import sys
import time

from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.rpc.servicer import ShardService


def main() -> None:
    """Serve until the input ends."""
    service = ShardService(Metrics("ps"), 60.0)
    service.controller.index = 0
    server = Server("127.0.0.1:0", service.register)
    print(server.address, flush=True)
    for _ in sys.stdin:
        while not service.controller.link.confirmed:  # whoever asks has a deadline
            time.sleep(0.01)
        print("followed", flush=True)
    server.close(0.0)
    service.controller.close()


if __name__ == "__main__":
    main()
