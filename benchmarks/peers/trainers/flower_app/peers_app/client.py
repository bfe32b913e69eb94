"""The client: one local epoch over its share in each round."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers.trainers.work import Work, network

IMAGES = 60_000

# -- user --
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a round."""
    work = Work(context.node_config["partition-id"])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.given.rate)
    steps = IMAGES // context.node_config["num-partitions"] // work.given.batch
    for images, digits in work.batches(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()
        work.trained()  # measured
    metrics = {"num-examples": work.samples}
    metrics |= {"rank": work.rank, "pid": int(work.source.rpartition(".")[2])}  # measured
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)
    # -- end --
