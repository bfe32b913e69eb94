"""Write dbelief/data/digits.npz from scikit-learn's copy of the UCI optical digits.

Run as `python tests/reference/make_digits.py`; the same bytes come out each time (with one version of zlib).
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    found = load_digits()
    images, labels = found.data.astype(np.uint8), found.target.astype(np.uint8)
    assert (images == found.data).all(), "a pixel is not a whole number from 0 to 255"
    target = Path(__file__).resolve().parents[2] / "dbelief" / "data" / "digits.npz"
    np.savez_compressed(target, images=images, labels=labels)
    print(f"{target}: {len(images)} images, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
