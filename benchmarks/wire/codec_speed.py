"""Speed of each codec on one core, encoding and decoding, against a minimum that does not slow the wire.

    python -m benchmarks.wire.codec_speed [--rounds 15] [--numbers 16777216]

A vector is cut into segments as a job's is, and each is encoded into memory of its own and decoded again, as a client
and a shard do it; every codec takes its turn in every round, so that whatever else the machine does meets all of them.
Figures are medians over the rounds, in 10^9 bytes of float32 a second; beside them stands a plain copy of the same
vector. Ends with 1 where a figure is below its limit.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, timing
from dbelief.arrays.backend import aligned
from dbelief.codec import Codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.codec.float16 import Float16
from dbelief.codec.one_bit import OneBit
from dbelief.codec.threshold import Threshold
from dbelief.codec.top_k import TopK
from dbelief.codec.whole_numbers import Int4, Int8
from dbelief.core.layout import MAX_SEGMENT_LENGTH
from dbelief.rpc.grpc_settings import keep_blocks

AT_LEAST = {"bf16": 10.0, "fp16": 10.0, "one-bit": 3.0}
"""GB/s of float32 on one core, for encoding and for decoding."""
CODECS: dict[str, Codec] = {
    "bf16": BFloat16(),
    "fp16": Float16(),
    "int8": Int8(),
    "int4": Int4(),
    "one-bit": OneBit(),
    "threshold, 1 % sent": Threshold(2.576),
    "threshold, 0.1 % sent": Threshold(3.291),
    "top-k": TopK(),
}
"""Of normally distributed numbers these thresholds let so many pass."""


class Subject:
    """One codec, the vectors that it encodes and fills, and the seconds of each round."""

    def __init__(self, codec: Codec, values: np.ndarray, out: np.ndarray) -> None:
        self.codec = codec
        self.parts = [slice(first, first + MAX_SEGMENT_LENGTH) for first in range(0, values.size, MAX_SEGMENT_LENGTH)]
        self.values, self.out = values, out
        self.residual = np.empty_like(values) if codec.keeps else None
        self.payloads: list[np.ndarray] = []
        self.encode_s: list[float] = []
        self.decode_s: list[float] = []

    def round(self) -> None:
        if self.residual is not None:
            self.residual[:] = 0  # so that as many pass a threshold in every round
        self.encode_s.append(timing.seconds(self.encode))
        self.decode_s.append(timing.seconds(self.decode))

    def encode(self) -> None:
        residual = self.residual
        self.payloads = [
            self.codec.encode(self.values[part], None if residual is None else residual[part]) for part in self.parts
        ]

    def decode(self) -> None:
        for part, payload in zip(self.parts, self.payloads, strict=True):
            self.codec.decode(payload.data, self.out[part])

    @property
    def share(self) -> float:
        """Bytes of the payloads over those of the numbers."""
        return sum(payload.nbytes for payload in self.payloads) / self.values.nbytes


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--numbers", type=int, default=1 << 24)
    arguments = parser.parse_args()
    keep_blocks()  # as every program does
    values, out = aligned(arguments.numbers, np.float32), aligned(arguments.numbers, np.float32)
    values[:] = np.random.default_rng(0).standard_normal(arguments.numbers, dtype=np.float32)
    subjects = {name: Subject(codec, values, out) for name, codec in CODECS.items()}
    for subject in subjects.values():  # compiled, and memory touched
        subject.encode()
        subject.decode()
    copies_s = []
    for _ in range(arguments.rounds):
        copies_s.append(timing.seconds(lambda: np.copyto(out, values)))
        for subject in subjects.values():
            subject.round()
    summarize(subjects, values.nbytes / 1e9, copies_s)


def summarize(subjects: dict[str, Subject], gigabytes: float, copies_s: list[float]) -> None:
    copied = gigabytes / statistics.median(copies_s)
    table = Table(
        "codec", "bytes", "encode GB/s", "decode GB/s", title=f"float32 on one core; a copy: {copied:.1f} GB/s"
    )
    results, missed = [], []
    for name, subject in subjects.items():
        encode, decode = (gigabytes / statistics.median(times) for times in (subject.encode_s, subject.decode_s))
        results.append({"codec": name, "share": subject.share, "encode_gb_s": encode, "decode_gb_s": decode})
        table.add_row(name, f"{100 * subject.share:.2f} %", f"{encode:.1f}", f"{decode:.1f}")
        limit = AT_LEAST.get(name, 0.0)
        missed += [
            f"{name}: {what} {found:.1f} GB/s, wanted at least {limit:g}"
            for what, found in (("encode", encode), ("decode", decode))
            if found < limit
        ]
    print("\n".join(missed), file=sys.stderr, end="\n" if missed else "")
    report.show(table, {"copy_gb_s": copied, "results": results})
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
