"""Assignment of samples to sets, and their order: from seeds alone, so that all processes agree."""

from dataclasses import dataclass

import numpy as np

from dbelief.errors import DataError


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """Order of n samples in one epoch.

    Parameters
    ----------
    n : int
        Samples of the training set.
    seed : int
        The job's seed, 0 or more.
    epoch : int
        From 0.

    Returns
    -------
    int64, shape (n,)
        Each of 0 .. n - 1 once. The same on every machine with the same NumPy.
    """
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    return rng.permutation(n).astype(np.int64, copy=False)


@dataclass(frozen=True)
class Parts:
    """Indices of the samples in each set: int64, ascending, disjoint, together all samples."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def cut(n: int, labels: np.ndarray | None, validation: float, test: float, where: str, seed: int = 0) -> Parts:
    """Split samples into three sets at random, separately for each class where there are classes.

    Every set has its share of each class, to within one sample; fewer only where a class would otherwise have no
    training sample.

    Parameters
    ----------
    n : int
        Number of samples.
    labels : int64, shape (n,), or None
        Classes; None where there are none.
    validation, test : float or int
        Share of all (float, below 1), or number of samples (int).
    where : str
        Name of the data in messages.
    seed : int

    Raises
    ------
    DataError
        There are no samples, no training samples are left, or none of some class.
    """
    groups = [np.arange(n)] if labels is None else [np.flatnonzero(labels == c) for c in np.unique(labels)]
    _, *sizes = cut_sizes(n, None if labels is None else len(groups), validation, test, where)
    sizes.reverse()
    rng = np.random.Generator(np.random.PCG64([seed, n]))
    counts = [len(group) for group in groups]
    room = [count - 1 for count in counts]
    shares = []
    for size in sizes:
        shares.append(_spread(size, counts, room))
        room = [free - taken for free, taken in zip(room, shares[-1], strict=True)]
    parts: list[list[np.ndarray]] = [[], [], []]
    for group, of_test, of_validation in zip(groups, *shares, strict=True):
        mixed = rng.permutation(group)
        for part, piece in zip(parts, np.split(mixed, [of_test, of_test + of_validation]), strict=True):
            part.append(piece)
    of_test, of_validation, of_train = (np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    return Parts(of_train, of_validation, of_test)


def cut_sizes(n: int, classes: int | None, validation: float, test: float, where: str) -> tuple[int, int, int]:
    """Sizes of the training, validation and test sets that `cut` makes; `classes`: number of classes, or None.

    Raises
    ------
    DataError
        See `cut`.
    """
    if n < 1:
        raise DataError(f"{where}: there are no samples")
    of_validation, of_test = _count(validation, n), _count(test, n)
    if of_validation + of_test > n - (classes or 1):
        left = "sample" if classes is None else "sample of each class"
        held = f"{of_validation} for validation and {of_test} for test"
        raise DataError(f"{where}: of {n} samples, {held} leave no {left} to train on")
    return n - of_validation - of_test, of_validation, of_test


def _count(part: float, n: int) -> int:
    """Number of samples for a share or a count."""
    return part if isinstance(part, int) else int(part * n + 0.5)


def _spread(size: int, counts: list[int], room: list[int]) -> list[int]:
    """Divide `size` in proportion to `counts` by largest remainders, with at most `room` for each.

    Ties go to the first; the sum of `room` is at least `size`.
    """
    n = sum(counts)
    taken = [min(free, size * count // n) for count, free in zip(counts, room, strict=True)]
    by_remainder = sorted(range(len(counts)), key=lambda c: -(size * counts[c] % n))
    while sum(taken) < size:
        for c in by_remainder:
            if sum(taken) < size and taken[c] < room[c]:
                taken[c] += 1
    return taken
