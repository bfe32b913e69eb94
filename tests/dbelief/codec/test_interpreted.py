"""The compiled loops of codecs give the bits that Python gives, number by number."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.codec import threshold, top_k, whole_numbers
from dbelief.codec.codec import Codec

CODECS = [
    (whole_numbers, whole_numbers.Int8()),
    (whole_numbers, whole_numbers.Int4()),
    (threshold, threshold.Threshold(0.5)),
    (top_k, top_k.TopK(0.1)),
]


def sent(codec: Codec, values: np.ndarray) -> tuple[bytes, bytes, bytes]:
    """Payload, residual, and what is read of the payload."""
    kept, read = np.linspace(-1, 1, values.size, dtype=np.float32), np.empty_like(values)
    payload = codec.encode(values.copy(), kept, (100, 101))
    codec.decode(payload.data, read)
    return payload.tobytes(), kept.tobytes(), read.tobytes()


@pytest.mark.parametrize(("module", "codec"), CODECS, ids=["int8", "int4", "threshold", "top-k"])
def test_compiled_and_interpreted_loops_agree(module: object, codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal(403).astype(np.float32)
    values[:3] = 3e38, -1e-40, 0
    values[110:380] = 0
    compiled = sent(codec, values)
    for name in ("_encode", "_decode"):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    with np.errstate(all="ignore"):
        assert sent(codec, values) == compiled
