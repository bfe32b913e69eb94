"""Images as tiles and back: what lies s pixels apart in an image lies one tile apart (`blocks.py`).

    tiles[a, b, (dy s + dx) c + channel, m] = images[m, a s + dy, b s + dx, channel]

Both are one strided copy, and each is the other's inverse and transpose.
"""

from __future__ import annotations

from dbelief.nn.model import Array


def space_to_depth(images: Array, s: int, out: Array | None = None) -> Array:
    """Cut images into tiles of s x s pixels.

    Parameters
    ----------
    images : (M, height, width, channels)
        Height and width are multiples of s.
    out : (height / s, width / s, s s channels, M), optional
        Where to write; else an array is made.
    """
    m, height, width, channels = images.shape
    if s < 1 or height % s or width % s:
        raise ValueError(f"images of {height} x {width} pixels do not divide into tiles of {s} x {s}")
    rows, columns = height // s, width // s
    view = images.reshape(m, rows, s, columns, s, channels).transpose(1, 3, 2, 4, 5, 0)
    if out is None:
        return view.copy().reshape(rows, columns, s * s * channels, m)
    out.reshape(rows, columns, s, s, channels, m)[...] = view  # an axis that is split stays a view
    return out


def depth_to_space(tiles: Array, s: int, out: Array | None = None) -> Array:
    """Join tiles of s x s pixels to images.

    Parameters
    ----------
    tiles : (rows, columns, s s channels, M)
    out : (M, rows s, columns s, channels), optional
        Where to write; else an array is made.
    """
    rows, columns, depth, m = tiles.shape
    if s < 1 or depth % (s * s):
        raise ValueError(f"{depth} numbers a tile do not divide into {s} x {s} pixels")
    channels = depth // (s * s)
    view = tiles.reshape(rows, columns, s, s, channels, m).transpose(5, 0, 2, 1, 3, 4)
    if out is None:
        return view.copy().reshape(m, rows * s, columns * s, channels)
    out.reshape(m, rows, s, columns, s, channels)[...] = view
    return out
