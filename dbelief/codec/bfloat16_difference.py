"""Numbers of bf16 as their difference from others that both sides have: lossless, and short where they are near.

Bit patterns of bf16, ordered as their numbers are, are whole numbers of 16 bits; a difference is that of two such,
modulo 2^16, with its sign in the lowest bit (zigzag): 0, -1, 1, -2, ... are 0, 1, 2, 3, ... Each block of 256
differences z has a parameter k. Up to 14, each z is a Rice code (Rice and Plaunt 1971): floor(z / 2^k) times the bit 0,
a bit 1, and the k lower bits of z. 15 stands for a block of z as they are, 16 for one without a difference.

Payload, little-endian: uint64, the version of the numbers that both sides have; for each block k, a byte; then each
block's bits from a byte of its own on, first bits lowest; bits behind the last one are 0.

Cost: of bf16's bytes about 0.2 where numbers differ by a hundredth of themselves, 0.4 by a tenth, and never all. Five
passes over a block, which the first cache holds, and a loop over its bits: an order slower than bf16 itself.
"""

from __future__ import annotations

import numpy as np

from dbelief.arrays.jit import kernel

u8, u16, u32, u64 = np.uint8, np.uint16, np.uint32, np.uint64

BLOCK = 256
"""Numbers that share a parameter."""
_HEAD = 8
"""Bytes of the version."""
_PLAIN, _NONE = 15, 16
"""Parameters of a block of z as they are, and of one without a difference."""
_WHY = {
    -1: "a block by a parameter above 16",
    -2: "a payload that ends within its numbers",
    -3: "a difference of more than 16 bits",
    -4: "bits behind the last number of a block",
    -5: "bytes behind the last block",
}
"""Why `_decode` has refused a payload."""


def encode(halves: np.ndarray, before: np.ndarray, version: int) -> np.ndarray | None:
    """Encode a segment as its difference from an earlier version of it.

    Parameters
    ----------
    halves, before
        (n,) uint16: bit patterns of bf16; left as they are.
    version
        Of those before: a number of 64 bits.

    Returns
    -------
    uint8 array or None
        The payload, in memory of its own; None where it would not have fewer bytes than the numbers of bf16.
    """
    room = np.empty(max(_HEAD, 2 * halves.size - 1), u8)
    written = int(_encode(halves, before, room[_HEAD:]))
    if written < 0:
        return None
    payload = room[: _HEAD + written].copy()
    payload[:_HEAD] = np.frombuffer(version.to_bytes(_HEAD, "little"), u8)
    return payload


def warm_up() -> None:
    """Compile the loops, or load them from the cache, so that no message waits for it."""
    number = np.zeros(BLOCK, u16)
    made = encode(number, number, 0)
    assert made is not None, "a block without a difference is shorter"
    decode(made.data, number, 0, number.copy())


def decode(payload: memoryview, before: np.ndarray, version: int, halves: np.ndarray) -> None:
    """Write the numbers that a payload holds the difference of.

    Parameters
    ----------
    before, version
        (n,) uint16 that they were encoded against, and their version.
    halves
        (n,) uint16: the numbers' bit patterns. Nothing outside is ever touched, whatever the payload.

    Raises
    ------
    ValueError
        The payload holds no n differences from this version, and says why.
    """
    if before.size != halves.size:
        raise ValueError(f"{halves.size} numbers as a difference from {before.size}")
    if payload.nbytes < _HEAD + -(-halves.size // BLOCK):
        raise ValueError(f"{payload.nbytes} bytes are not {halves.size} differences in blocks")
    named = int.from_bytes(payload[:_HEAD], "little")
    if named != version:
        raise ValueError(f"a difference from version {named}, and those before are version {version}")
    found = int(_decode(np.frombuffer(payload, u8, offset=_HEAD), before, halves, _FIRST_BIT))
    if found < 0:
        raise ValueError(_WHY[found])


_FIRST_BIT = np.array([8, *((byte & -byte).bit_length() - 1 for byte in range(1, 256))], u8)
"""Of each byte, the number of its lowest bit that is 1; 8: there is none."""


@kernel("read uint16", "read uint16", "write uint8", "int64")
def _encode(halves: np.ndarray, before: np.ndarray, packed: np.ndarray) -> int:
    """Write a payload; its bytes, or -1 where there is no room for it."""
    z = np.empty(BLOCK, u32)
    at = (halves.size + BLOCK - 1) // BLOCK
    if at > packed.size:
        return -1
    for block, first in enumerate(range(0, halves.size, BLOCK)):
        count = min(BLOCK, halves.size - first)
        total = u32(0)  # below 2^24
        for i in range(count):
            new, old = u32(halves[first + i]), u32(before[first + i])
            new = u32(new ^ u32(u32(new >> u32(15)) * u32(0x7FFF)))
            old = u32(old ^ u32(u32(old >> u32(15)) * u32(0x7FFF)))
            apart = u32(u32(new - old) & u32(0xFFFF))
            z[i] = u32(u32(apart << u32(1)) ^ u32(u32(apart >> u32(15)) * u32(0x1FFFF)))
            total = u32(total + z[i])
        best, bits = _PLAIN, 16 * count
        if total == u32(0):
            best, bits = _NONE, 0
        else:
            near = 0  # the first k with 2^k above the mean; the best one is hardly ever another than these three
            while near < _PLAIN - 1 and count << near <= int(total):
                near += 1
            for k in range(max(0, near - 2), near + 1):
                zeros = u32(0)
                for i in range(count):
                    zeros = u32(zeros + u32(z[i] >> u32(k)))
                needed = int(zeros) + count * (k + 1)
                if needed < bits:
                    best, bits = k, needed
        packed[block] = u8(best)
        if at + (bits + 7) // 8 > packed.size:
            return -1
        if best == _PLAIN:
            for i in range(count):
                packed[at] = u8(z[i] & u32(0xFF))
                packed[at + 1] = u8(z[i] >> u32(8))
                at += 2
        elif best < _PLAIN:
            held, filled = u64(0), 0
            mask = u32(u32(u32(1) << u32(best)) - u32(1))
            for i in range(count):
                filled += int(z[i] >> u32(best))
                while filled >= 8:
                    packed[at] = u8(held & u64(0xFF))
                    held = u64(held >> u64(8))
                    at += 1
                    filled -= 8
                code = u64(u64(u64(z[i] & mask) << u64(1)) | u64(1))
                held = u64(held | u64(code << u64(filled)))
                filled += best + 1
                while filled >= 8:
                    packed[at] = u8(held & u64(0xFF))
                    held = u64(held >> u64(8))
                    at += 1
                    filled -= 8
            if filled > 0:
                packed[at] = u8(held & u64(0xFF))
                at += 1
    return at


@kernel("read uint8", "read uint16", "write uint16", "read uint8", "int64")
def _decode(packed: np.ndarray, before: np.ndarray, halves: np.ndarray, first_bit: np.ndarray) -> int:
    """Write the numbers of a payload that has a parameter for each block; 0, or a key of `_WHY`."""
    end, at = packed.size, (halves.size + BLOCK - 1) // BLOCK
    for block, first in enumerate(range(0, halves.size, BLOCK)):
        count = min(BLOCK, halves.size - first)
        kind = int(packed[block])
        if kind > _NONE:
            return -1
        if kind == _PLAIN and at + 2 * count > end:
            return -2
        held, filled = u64(0), 0
        mask, most = u32(u32(u32(1) << u32(kind)) - u32(1)), 0xFFFF >> kind
        for i in range(count):
            z = u32(0)
            if kind == _PLAIN:
                z = u32(u32(packed[at]) | u32(u32(packed[at + 1]) << u32(8)))
                at += 2
            elif kind < _PLAIN:
                zeros = 0
                while True:
                    while filled <= 48 and at < end:
                        held = u64(held | u64(u64(packed[at]) << u64(filled)))
                        filled += 8
                        at += 1
                    if held != u64(0):
                        break
                    zeros += filled
                    filled = 0
                    if at >= end:
                        return -2
                while u64(held & u64(0xFF)) == u64(0):
                    held = u64(held >> u64(8))
                    zeros += 8
                    filled -= 8
                step = int(first_bit[u64(held & u64(0xFF))])
                zeros += step
                if zeros > most:
                    return -3
                held = u64(held >> u64(step + 1))
                filled -= step + 1
                while filled < kind:
                    if at >= end:
                        return -2
                    held = u64(held | u64(u64(packed[at]) << u64(filled)))
                    filled += 8
                    at += 1
                z = u32(u32(u32(zeros) << u32(kind)) | u32(u32(u64(held & u64(0xFFFF))) & mask))
                held = u64(held >> u64(kind))
                filled -= kind
            old = u32(before[first + i])
            old = u32(old ^ u32(u32(old >> u32(15)) * u32(0x7FFF)))
            new = u32(u32(old + u32(u32(z >> u32(1)) ^ u32(u32(z & u32(1)) * u32(0xFFFF)))) & u32(0xFFFF))
            halves[first + i] = u16(u32(new ^ u32(u32(new >> u32(15)) * u32(0x7FFF))))
        at -= filled // 8  # bytes of the next block
        rest = u64(held & u64(u64(u64(1) << u64(filled % 8)) - u64(1)))
        if rest != u64(0):
            return -4
    return -5 if at != end else 0
