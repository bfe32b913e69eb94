"""A model of one's own in plain NumPy: linear regression. Used by least_squares.yaml."""

import numpy as np


class LeastSquares:
    """f(x) = x w + b, with the loss 0.5 (f(x) - y)^2."""

    features = 20

    def parameters(self, rng):
        """Initial values by name, float32: the same rng gives the same values on every machine."""
        return {
            "weight": rng.normal(0, 0.1, (self.features, 1)).astype(np.float32),
            "bias": np.zeros(1, np.float32),
        }

    def loss_and_gradient(self, views, batch, out):
        """Mean loss over the batch; its gradient is written into `out`."""
        error = batch.inputs @ views["weight"] + views["bias"] - batch.targets
        np.matmul(batch.inputs.T, error / len(batch), out=out["weight"])
        out["bias"][:] = error.mean(axis=0)
        return float(0.5 * np.mean(error**2))
