"""A training loop of one's own against a job that brings no data (own_loop.yaml).

dbelief coordinator examples/own_loop.yaml &     dbelief ps --coordinator 127.0.0.1:7070 &
python examples/own_loop.py
"""

import sys

import numpy as np

import dbelief

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"


def main() -> None:
    """Fit y = x w by mini-batches drawn here."""
    rng = np.random.default_rng(1)
    truth = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    loss = float("nan")
    with dbelief.connect(ADDRESS) as job:
        while not job.over:
            inputs = rng.normal(size=(32, 20)).astype(np.float32)
            w = job.pull()
            error = inputs @ w["weight"] + w["bias"] - inputs @ truth
            loss = float(0.5 * np.mean(error**2))
            job.push({"weight": inputs.T @ error / 32, "bias": error.mean(axis=0)}, samples=32, loss=loss)
    print(f"loss {loss:.6f}")


if __name__ == "__main__":
    main()
