"""What has the same bits on every machine, as digests of outputs; `digests.json` holds those that all compare with.

    python -m tests.portable.digests          compare, and list what differs
    python -m tests.portable.digests --write  write digests.json anew, after a change that is meant to change bits

Inputs come out of a hash, so that they depend on no library's generator: multiples of 2^-23 times a power of two from
2^-12 to 2^3, and some zeros.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.arrays.vector_kernels import compiled
from dbelief.codec import bfloat16_difference, make_codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.layout import SegmentSpan
from dbelief.core.push import Push, Pusher
from dbelief.core.vector_program import copy, dots, lincomb, norm1, opposed, orthant, pseudo
from dbelief.optim import Rule, make_rule
from dbelief.optim.rules.elastic import ElasticMove
from dbelief.optim.rules.row_adagrad import RowAdagrad
from dbelief.sparse.row_hash import buckets, hashes, table_salt, uniform_rows
from dbelief.sparse.table import pack, packed_mean, unpack
from dbelief.training.schedule import cosine, poly, step, warm_up_factor
from ps_server.programs import ProgramExecutor
from ps_server.store.shard import Shard
from worker.comm.collectives.wire_format import BFloat16Format, Float16Format, Format

FILE = Path(__file__).with_name("digests.json")
LENGTHS = (1, 7, 64, 1000, 10_007)
"""Below a row, of whole rows, and of many blocks with a rest."""
RULES: tuple[tuple[str, dict[str, float]], ...] = (
    ("sgd", {"weight_decay": 0.1}),
    ("momentum", {"weight_decay": 0.1}),
    ("caffe-momentum", {"mu": 0.5}),
    ("nesterov", {}),
    ("adagrad", {"eps": 1e-10, "a0": 0.1}),
    ("adam", {}),
    ("adamw", {"weight_decay": 0.3}),
    ("ftrl", {"l1": 0.5, "l2": 0.1}),
    ("elastic", {}),
)
CODECS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bf16", {}),
    ("fp16", {}),
    ("int8", {}),
    ("int4", {}),
    ("one-bit", {}),
    ("threshold", {"tau": 0.125}),
    ("top-k", {"share": 0.0625}),
)


def numbers(label: str, size: int, dtype: type = np.float32) -> np.ndarray:
    """(size,) numbers that are the same on every machine; another label gives others."""
    words = np.frombuffer(hashlib.shake_256(label.encode()).digest(4 * size), "<u4")
    mantissas = (words >> 8).astype(np.int64) - (1 << 23)
    values = np.ldexp(mantissas.astype(np.float64), (words & 15).astype(np.int32) - 12 - 23)
    values[words & 0xF0 == 0] = 0
    return values.astype(dtype)


def digest(*parts: Any) -> str:
    """Of arrays' bytes, floats' bits and bytes, one after the other."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(struct.pack("<d", part) if isinstance(part, float) else bytes(part))
    return found.hexdigest()


def codecs() -> Iterator[tuple[str, str]]:
    """Payloads of three pushes, what is decoded of them, and what is kept."""
    for name, options in CODECS:
        codec = make_codec(name, options)
        assert codec is not None
        for size in LENGTHS:
            kept = np.zeros(size, np.float32) if codec.keeps else None
            parts: list[Any] = []
            for push in range(3):
                payload = codec.encode(numbers(f"push {push}", size), kept, [size // 3] if size > 3 else [])
                out = np.empty(size, np.float32)
                codec.decode(payload.data, out)
                parts += [payload, out] if kept is None else [payload, out, kept.copy()]
            yield f"{name} {size}", digest(*parts)
    for size in LENGTHS:
        halves, before = (bf16(numbers("push 0", size) * np.float32(scale)) for scale in (1, 1.0625))
        shorter = bfloat16_difference.encode(halves, before, size)
        yield f"bf16 difference {size}", "longer" if shorter is None else digest(shorter)


def bf16(values: np.ndarray) -> np.ndarray:
    """Bit patterns of bf16, uint16."""
    return BFloat16().encode(values).view(np.uint16)


def wires() -> Iterator[tuple[str, str]]:
    """What ranks of a group send each other in 16 bits."""
    formats: dict[str, Format] = {"float16": Float16Format(np), "bfloat16": BFloat16Format(np, 10_007)}
    for name, wire in formats.items():
        values, total = numbers("sent", 10_007), numbers("held", 10_007)
        packed, back = np.empty(values.size, wire.dtype), np.empty_like(values)
        wire.pack(values, packed)
        wire.unpack(packed, back)
        wire.add(packed, total)
        yield name, digest(packed, back, total)


def rules() -> Iterator[tuple[str, str]]:
    """Parameters and states after each of five pushes, by the loop and by the formula: one digest, where they agree."""
    for name, options in RULES:
        rule = make_rule(name, options)
        for size in LENGTHS:
            forms = rule.apply, functools.partial(rule.apply_reference, np)
            yield f"{name} {size}", " or ".join(sorted({_pushed(rule, form, size) for form in forms}))
    centre = numbers("centre", 10_007)
    ElasticMove().together(np, centre, [numbers(f"worker {rank}", 10_007) for rank in range(3)], np.float32(0.1))
    yield "elastic together", digest(centre)


def _pushed(rule: Rule, form: Callable[..., None], size: int) -> str:
    w = numbers("w", size)
    states = tuple(np.full(size, value, np.float32) for value in rule.state.values())
    parts: list[Any] = []
    for push in range(1, 6):
        form(w, numbers(f"gradient {push}", size), states, np.float32(0.05), push)
        parts += [w.copy(), *(state.copy() for state in states)]
    return digest(*parts)


def tables() -> Iterator[tuple[str, str]]:
    """Hashes of keys, initial rows, and rows with their state after each of five pushes, packed means among them."""
    keys = np.sort(np.unique(numbers("keys", 10_007, np.float64).view(np.int64)))
    salt = table_salt(7, "user")
    yield "hashes", digest(hashes(keys, salt), buckets(hashes(keys, salt), 37))
    for width in (1, 3, 16):
        first = uniform_rows(keys, salt, width, 0.3)
        yield f"initial {width}", digest(first)
        w, sums = first.reshape(-1).copy(), np.zeros(keys.size, np.float32)
        parts: list[Any] = []
        for push in range(1, 6):
            gradients = [numbers(f"gradient {push} {rank}", w.size).reshape(-1, width) for rank in range(2)]
            packed = [(pack(keys[rank::2], rows[rank::2]), 2.0 + rank) for rank, rows in enumerate(gradients)]
            _, mean = unpack(packed_mean(width, packed), width)
            RowAdagrad(eps=1e-8).apply(w, mean.reshape(-1), (sums,), np.float32(0.05), push)
            parts += [w.copy(), sums.copy()]
        yield f"row-adagrad {width}", digest(*parts)


def schedules() -> Iterator[tuple[str, str]]:
    """Rates, at which every replica of a group arrives by itself."""
    samples = range(0, 100_000, 97)
    yield "step", digest(*(step(0.1, at, every=1000, factor=0.93) for at in samples))
    yield "rise", digest(*(warm_up_factor(at, over=50_000, start_factor=0.1) for at in samples))
    for exponent in (0.5, 0.7, 2.0):
        yield f"poly {exponent}", digest(*(poly(0.1, at, power=exponent, total=90_000) for at in samples))
    yield "cosine", digest(*(cosine(0.1, at, end=0.01, total=90_000) for at in samples))


def sums() -> Iterator[tuple[str, str]]:
    """Sums over vectors of float32 and float64."""
    for kind in (np.float32, np.float64):
        for size in (0, *LENGTHS):
            x, y = numbers("x", size, kind), numbers("y", size)
            found = compiled("dot")(x, y), compiled("norm1")(x)
            yield f"{np.dtype(kind).name} {size}", digest(*found)


PROGRAM = (
    lincomb("a", (0.3, "w")),
    copy("b", "w"),
    lincomb("b", (-1.7, "b")),
    lincomb("c", (0.9, "a"), (1.3, "b")),
    lincomb("d", (0.1, "w"), (0.2, "a"), (0.3, "b"), (0.4, "c"), (0.5, "a"), (0.6, "b")),
    lincomb("accrued", (1e-3, "d"), (1.1, "w")),
    dots(("a", "b"), ("c", "d"), ("accrued", "w")),
    pseudo("e", "w", "a", 0.2, (900, 1100)),
    opposed("b", "e", (900, 1100)),
    orthant("c", "w", "e"),
    norm1("c", (900, 1100)),
)


def programs() -> Iterator[tuple[str, str]]:
    """Scalars and vectors of a program with every operation, over several segments."""
    lengths = (1, 1000, 33, 4096, 2005)
    starts = np.cumsum([0, *lengths]).tolist()
    spans = tuple(
        SegmentSpan(index, first, length) for index, (first, length) in enumerate(zip(starts, lengths, strict=False))
    )
    shard = Shard(spans, make_rule("sgd", {}), None)
    values = numbers("w", sum(lengths))
    for span in spans:
        part = values[span.start : span.start + span.length]
        shard.push(Push(Pusher(0, 1), 1, assign=True), span.index, part)
    shard.make_ready()
    runner = ProgramExecutor(shard)
    try:
        yield "scalars", digest(*runner.run(PROGRAM))
    finally:
        runner.close()
    for name in ("w", "a", "b", "c", "d", "e", "accrued"):
        yield name, digest(*(shard.segments[span.index].vectors[name] for span in spans))


FAMILIES: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
    "codecs": codecs,
    "wires": wires,
    "rules": rules,
    "tables": tables,
    "schedules": schedules,
    "sums": sums,
    "programs": programs,
}


def main() -> None:
    """Compare with the file, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    found = {family: dict(make()) for family, make in FAMILIES.items()}
    if parser.parse_args().write:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
        return
    held = json.loads(FILE.read_text())
    differs = [
        f"{f}: {case}" for f, cases in found.items() for case in cases if held.get(f, {}).get(case) != cases[case]
    ]
    print("\n".join(differs) or "the same bits")
    raise SystemExit(1 if differs else 0)


if __name__ == "__main__":
    main()
