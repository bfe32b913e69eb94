"""Reduction trees of ranks. Rank 0 is the root of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Shape:
    """A tree of all ranks.

    Attributes
    ----------
    children
        By rank, in the order in which they are added; the results are sent down to them in the opposite order.
    """

    children: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.children)

    @cached_property
    def parents(self) -> tuple[int | None, ...]:
        """Parent by rank; the root has none."""
        parents: list[int | None] = [None] * self.ranks
        for rank, children in enumerate(self.children):
            for child in children:
                parents[child] = rank
        return tuple(parents)

    def depth(self, rank: int) -> int:
        """Number of messages on the path from a rank to the root."""
        parent = self.parents[rank]
        return 0 if parent is None else 1 + self.depth(parent)

    def rounds_up(self, rank: int = 0) -> int:
        """Sequential messages until a rank has received all below it, if it receives one at a time."""
        rounds = 0
        for child in self.children[rank]:
            rounds = max(rounds, self.rounds_up(child)) + 1
        return rounds

    def rounds_down(self, rank: int = 0) -> int:
        """Sequential messages until all below a rank have its data, if each rank sends one at a time."""
        given = enumerate(reversed(self.children[rank]), start=1)
        return max((sent + self.rounds_down(child) for sent, child in given), default=0)

    @property
    def busiest(self) -> int:
        """Maximum number of messages that any rank receives, on the way up and down; it sends as many."""
        return max(len(children) + (rank > 0) for rank, children in enumerate(self.children))


def binomial(ranks: int) -> Shape:
    """Binomial tree, in which all ranks are busy: in round k, all unfinished ranks send or receive at distance 2^k.

    ceil(log2 ranks) rounds up and as many down (FireCaffe, Eq. 4).
    """
    _some(ranks)
    steps = [1 << bit for bit in range((ranks - 1).bit_length())]
    lowest = [(rank & -rank) or ranks for rank in range(ranks)]
    return Shape(tuple(tuple(r + s for s in steps if s < lowest[r] and r + s < ranks) for r in range(ranks)))


def with_arity(ranks: int, arity: int) -> Shape:
    """Tree filled level by level, each rank having up to `arity` children; 1 makes a linear sequence."""
    _some(ranks)
    if arity < 1:
        raise ValueError(f"a tree whose ranks have {arity} children: arity must be 1 or more")
    return Shape(tuple(tuple(range(arity * r + 1, min(arity * (r + 1) + 1, ranks))) for r in range(ranks)))


def server(ranks: int) -> Shape:
    """Tree of height 1: rank 0 receives from all others, and adds in rank order (FireCaffe, section 6.1)."""
    return with_arity(ranks, max(ranks - 1, 1))


def named(way: str, ranks: int, arity: int | None = None) -> Shape:
    """The tree of a job file's `server` or `tree`: a binomial one where no arity is given."""
    if way == "server":
        return server(ranks)
    return binomial(ranks) if arity is None else with_arity(ranks, arity)


def _some(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a tree of {ranks} ranks: there must be one or more")
