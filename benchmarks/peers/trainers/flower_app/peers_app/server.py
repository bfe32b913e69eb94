"""The server: federated averaging."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.peers.trainers.work import Given, Reports, network


class Reporting(FedAvg):
    """The same, with a report of what is averaged."""

    def __init__(self, reports: Reports, **more: Any) -> None:
        super().__init__(**more)
        self._reports = reports

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Average, and report."""
        replies = list(replies)
        averaged = super().aggregate_train(server_round, replies)
        for reply in replies:
            if not reply.has_error():
                metrics = reply.content["metrics"]
                source = f"worker-{metrics['rank']}.{metrics['pid']}"
                self._reports.write(applied=(source, 1, metrics["num-examples"]))
        if averaged[0] is not None:
            model = network()
            model.load_state_dict(averaged[0].to_torch_state_dict())
            self._reports.keep(model)
        return averaged


# -- user --
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for all rounds."""
    given = Given()
    arrays = ArrayRecord(network().state_dict())
    reports = Reports(given, "server")  # measured
    reports.write(state=0)  # measured
    settings = {"fraction_train": 1.0, "fraction_evaluate": 0.0, "min_available_nodes": given.workers}
    strategy = Reporting(reports, **settings)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["num-server-rounds"])
    # -- end --
