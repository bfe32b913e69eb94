"""Logistic regression in plain NumPy: a convex problem, whose optimum any method has to find. Used by a9a.yaml."""

import numpy as np


class Logistic:
    """The chance of class 1 is 1 / (1 + exp(-w.x)); no constant term, and w = 0 at the start."""

    features = 123

    def parameters(self, rng):
        """All zeros."""
        return {"w": np.zeros(self.features, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        """Mean loss over the batch; its gradient is written into `out`."""
        inputs, signs, margins = self._margins(views, batch)
        out["w"][:] = -(signs / (1 + np.exp(margins))) @ inputs / len(signs)
        return float(np.logaddexp(0, -margins).mean())

    def evaluate(self, views, batch):
        """Sum of the losses over the batch, and how many answers are right."""
        _, _, margins = self._margins(views, batch)
        return float(np.logaddexp(0, -margins).sum()), int(np.count_nonzero(margins > 0))

    @staticmethod
    def _margins(views, batch):
        # In float64: near the optimum the gradient is a small difference of large sums.
        inputs, signs = batch.inputs.astype(np.float64), np.where(batch.targets == 1, 1.0, -1.0)
        return inputs, signs, signs * (inputs @ views["w"].astype(np.float64))
