"""Windows that slide over images: how many there are, what a range of them sees, and sums and largest over them.

Only windows that lie inside the image count ("valid"): of `size` pixels, `stride` apart, there are
(n - size) // stride + 1 along an axis of n pixels. An image is (m, height, width, channels). With `padding` the image
has a border of so many pixels on each side; with `ceil_mode` the last windows may hang over its far edges.

A sum over windows whose weights are an outer product g g^T is taken along the columns first, then along the rows:
2 size passes over the image instead of size^2. Each output is the same sequence of operations wherever it lies and
however large the image is: cut over machines, it keeps its bits.
"""

from collections.abc import Iterator, Sequence

from dbelief.errors import ModelError
from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .image import image_shape
from .layer import Shape


def windows(inputs: Shape, size: int, stride: int, padding: int = 0, ceil_mode: bool = False) -> tuple[int, int]:
    """How many windows there are down and across.

    Raises
    ------
    ModelError
        There are no images, or a window is larger than they are.
    """
    height, width, _ = image_shape(inputs)
    if size > min(height, width) + 2 * padding:
        border = f" with a border of {padding}" if padding else ""
        raise ModelError(f"has windows of {size} x {size} pixels, but gets images of {height} x {width}{border}")

    def along(pixels: int) -> int:
        left = pixels + 2 * padding - size
        if not ceil_mode:
            return left // stride + 1
        return min(-(-left // stride), (pixels + padding - 1) // stride) + 1  # none that sees nothing but border

    return along(height), along(width)


def bordered(work: Workspace, x: Array, size: int, stride: int, padding: int, shape: Shape, fill: float) -> Array:
    """Give x (m, height, width, channels) with `fill` around it, as far as windows see; x where that is no further.

    `shape` is that of the outputs. Pixel (0, 0) is at (padding, padding) of what is given, a buffer of `work`.
    """
    sides = [max(padding + n, (count - 1) * stride + size) for n, count in zip(x.shape[1:3], shape[1:3], strict=True)]
    if sides == list(x.shape[1:3]):
        return x
    image = work.array("bordered", (len(x), *sides, x.shape[3]), x.dtype)
    image.fill(fill)
    work.xp.copyto(inside(image, padding, x.shape), x)
    return image


def inside(image: Array, padding: int, shape: Shape) -> Array:
    """View of what has the border, of this shape."""
    return image[:, padding : padding + shape[1], padding : padding + shape[2]]


def seen(start: int, stop: int, size: int, stride: int) -> tuple[int, int]:
    """Which pixels [first, last) of an axis the windows [start, stop) see; takes start < stop."""
    return start * stride, (stop - 1) * stride + size


def taps(x: Array, size: int, stride: int, shape: Shape) -> Iterator[Array]:
    """Give each pixel of all windows as a view into x, shaped as the outputs: the upper left ones first, row by row."""
    _, down, across, _ = shape
    for v in range(size):
        rows = _tap(x, 1, v, stride, down)
        for u in range(size):
            yield _tap(rows, 2, u, stride, across)


def window_sum(work: Workspace, name: str, x: Array, weights: Sequence[float], stride: int, out: Array) -> None:
    """Write out[., i, j, .] = sum over v, u of weights[v] weights[u] x[., stride i + v, stride j + u, .].

    `name` distinguishes its buffers in `work` from those of other sums.
    """
    m, _, width, channels = x.shape
    columns = work.array(f"{name}.columns", (m, out.shape[1], width, channels), x.dtype)
    _slide(work, name, x, weights, stride, 1, columns)
    _slide(work, name, columns, weights, stride, 2, out)


def window_spread(work: Workspace, name: str, dy: Array, weights: Sequence[float], stride: int, out: Array) -> None:
    """Write the gradient of `window_sum`: out = its transpose times dy."""
    m, _, width, channels = out.shape
    columns = work.array(f"{name}.columns", (m, dy.shape[1], width, channels), dy.dtype)
    _spread(work, name, dy, weights, stride, 2, columns)
    _spread(work, name, columns, weights, stride, 1, out)


def window_max(work: Workspace, name: str, x: Array, size: int, stride: int, out: Array) -> None:
    """Write out[., i, j, .] = the largest x[., stride i + v, stride j + u, .] over v, u: along columns, then rows."""
    m, _, width, channels = x.shape
    columns = work.array(f"{name}.columns", (m, out.shape[1], width, channels), x.dtype)
    for image, axis, largest in ((x, 1, columns), (columns, 2, out)):
        first, *others = (_tap(image, axis, v, stride, largest.shape[axis]) for v in range(size))
        work.xp.maximum(first, others.pop() if others else first, out=largest)
        for tap in others:
            work.xp.maximum(largest, tap, out=largest)


def _slide(work: Workspace, name: str, x: Array, weights: Sequence[float], stride: int, axis: int, out: Array) -> None:
    """Write out[i] = sum over v of weights[v] x[stride i + v], along one axis."""
    for v, weight in enumerate(weights):
        term = _times(work, f"{name}.part{axis}", _tap(x, axis, v, stride, out.shape[axis]), weight)
        if v == 0:
            work.xp.copyto(out, term)
        else:
            work.xp.add(out, term, out=out)


def _spread(work: Workspace, name: str, x: Array, weights: Sequence[float], stride: int, axis: int, out: Array) -> None:
    """Write out[stride i + v] = sum of all weights[v] x[i] that fall there, along one axis."""
    out.fill(0)
    for v, weight in enumerate(weights):
        there = _tap(out, axis, v, stride, x.shape[axis])
        work.xp.add(there, _times(work, f"{name}.part{axis}", x, weight), out=there)


def _times(work: Workspace, name: str, x: Array, weight: float) -> Array:
    """Give weight x, in a buffer of this name unless it is x itself."""
    return x if weight == 1 else work.xp.multiply(x, weight, out=work.array(name, x.shape, x.dtype))


def _tap(x: Array, axis: int, v: int, stride: int, n: int) -> Array:
    """View of x[v], x[v + stride], ..., n of them, along one axis."""
    return x[(slice(None),) * axis + (slice(v, v + stride * (n - 1) + 1, stride),)]
