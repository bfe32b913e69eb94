"""The waiting GPT by torchft's DiLoCo: a replica group of one process, on CPU over gloo.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... OWN_ADDR=... python waiting_gpt_torchft.py BATCH STEPS DELAY

Written after the example of torchft 0.2: an outer step of Nesterov's momentum, all parameters in one fragment, which is
sent in one piece DELAY steps before the end of a round, and is mixed with what was trained meanwhile. float32 travels:
torchft quantizes on GPUs only. A process trains until it is terminated; rank 0 serves the lighthouse at MASTER_ADDR,
and prints an event of progress after each round that was committed.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from datetime import timedelta
from typing import Any

import torch
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

waiting: Any = importlib.import_module("waiting_gpt")  # beside this script

DEADLINE = timedelta(seconds=60)


def main() -> None:
    """Train."""
    batch, steps, delay = map(int, waiting.WORDS)
    rank, count, own = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["OWN_ADDR"]
    meeting = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    serving = [LighthouseServer(bind=meeting, min_replicas=count)] if rank == 0 else []  # as long as it is held
    store = torch.distributed.TCPStore(own, 0, is_master=True, wait_for_workers=False)
    torch.set_num_threads(1)
    model = waiting.WaitingGpt(float(os.environ["DBELIEF_COMPUTE_WAIT"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=waiting.RATE, fused=True)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager = Manager(
        ProcessGroupGloo(timeout=DEADLINE),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=count,
        use_async_quorum=False,
        timeout=DEADLINE,
        quorum_timeout=DEADLINE,
        init_sync=False,  # all are made from the same seed
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=store.port,
        lighthouse_addr=f"http://{meeting}",
        replica_id=f"group_{rank}",
        hostname=own,
    )
    more = {"fragment_sync_delay": delay, "fragment_update_alpha": 0.5 if delay else 0.0, "use_bucketization": True}
    began_s, printed = time.monotonic(), -1
    with DiLoCo(manager, [model], optimizer, outer, sync_every=steps, **more):
        while True:
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
            committed = manager.batches_committed()  # rounds of all groups
            if serving and committed > printed:
                printed = committed
                event = {"elapsed_s": time.monotonic() - began_s, "samples": committed * steps * batch}
                print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
