"""Trees of ranks: who sums for whom. Rank 0 is the root of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Shape:
    """A tree of all ranks.

    Attributes
    ----------
    children
        By rank, in the order in which they are added; the results go down to them in the opposite order.
    """

    children: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.children)

    @cached_property
    def parents(self) -> tuple[int | None, ...]:
        """By rank; the root has none."""
        parents: list[int | None] = [None] * self.ranks
        for rank, children in enumerate(self.children):
            for child in children:
                parents[child] = rank
        return tuple(parents)

    def depth(self, rank: int) -> int:
        """How many messages a rank is away from the root."""
        parent = self.parents[rank]
        return 0 if parent is None else 1 + self.depth(parent)

    def rounds_up(self, rank: int = 0) -> int:
        """Messages, one after the other, until a rank has all that is below it, if it takes one at a time."""
        rounds = 0
        for child in self.children[rank]:
            rounds = max(rounds, self.rounds_up(child)) + 1
        return rounds

    def rounds_down(self, rank: int = 0) -> int:
        """Messages, one after the other, until all below a rank have what it has, if each gives one at a time."""
        given = enumerate(reversed(self.children[rank]), start=1)
        return max((sent + self.rounds_down(child) for sent, child in given), default=0)

    @property
    def busiest(self) -> int:
        """The most messages that any rank takes, on the way up and down; it gives as many."""
        return max(len(children) + (rank > 0) for rank, children in enumerate(self.children))


def binomial(ranks: int) -> Shape:
    """The tree in which everybody is busy: in round k, 2^k ranks apart, all that are not done send or take.

    ceil(log2 ranks) rounds up and as many down (FireCaffe, Eq. 4).
    """
    _some(ranks)
    steps = [1 << bit for bit in range((ranks - 1).bit_length())]
    lowest = [(rank & -rank) or ranks for rank in range(ranks)]
    return Shape(tuple(tuple(r + s for s in steps if s < lowest[r] and r + s < ranks) for r in range(ranks)))


def with_arity(ranks: int, arity: int) -> Shape:
    """The tree that is filled level by level, each rank having up to `arity` children; 1 makes a chain."""
    _some(ranks)
    if arity < 1:
        raise ValueError(f"a tree whose ranks have {arity} children: arity must be 1 or more")
    return Shape(tuple(tuple(range(arity * r + 1, min(arity * (r + 1) + 1, ranks))) for r in range(ranks)))


def server(ranks: int) -> Shape:
    """The tree of height 1: rank 0 takes from all others, and adds in rank order (FireCaffe, section 6.1)."""
    return with_arity(ranks, max(ranks - 1, 1))


def named(way: str, ranks: int, arity: int | None = None) -> Shape:
    """The tree that a job file means by `server`, or by `tree`: a binomial one where no arity is given."""
    if way == "server":
        return server(ranks)
    return binomial(ranks) if arity is None else with_arity(ranks, arity)


def _some(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a tree of {ranks} ranks: there must be one or more")
