"""Time of an allreduce over the ranks, on links that carry one message at a time in each direction.

A message of m bytes takes T(m) = alpha + beta m seconds (You et al. 2017, section 5.2); adding takes none. With K
`chunks`, the first chunk travels the complete path, and each further one follows when the busiest link has finished the
previous one:

    tree    (up + down) T(n / K) + (K - 1) busiest T(n / K)      rounds and busiest: of the `Shape`
    ring    2 (P - 1) K T(n / P K)

With one chunk, and alpha = 0, the server takes 2 (P - 1) n beta, which is FireCaffe's Eq. 3 (|W| p / BW) for p = P - 1
workers, once for each direction: the incoming data is summed before anything is sent back. With many chunks both
directions overlap, which leaves Eq. 3. A binomial tree takes 2 ceil(log2 P) n beta: FireCaffe's Eq. 4, if P is 2^k.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbelief.core.reduction_tree import Shape


@dataclass(frozen=True)
class Link:
    """Network link between any two ranks.

    Attributes
    ----------
    alpha_s
        Seconds for a message of no bytes.
    beta_s
        Seconds for each byte.
    """

    alpha_s: float
    beta_s: float

    def seconds(self, size: float) -> float:
        """Seconds for a message of `size` bytes."""
        return self.alpha_s + self.beta_s * size


def tree_seconds(tree: Shape, size: float, link: Link, chunks: int = 1) -> float:
    """Seconds of a `TreeAllreduce` of `size` bytes."""
    messages = tree.rounds_up() + tree.rounds_down() + (chunks - 1) * tree.busiest
    return messages * link.seconds(size / chunks) if tree.ranks > 1 else 0.0


def ring_seconds(ranks: int, size: float, link: Link, chunks: int = 1) -> float:
    """Seconds of a `RingAllreduce` of `size` bytes, with each rank's piece in `chunks` chunks."""
    return 2 * (ranks - 1) * chunks * link.seconds(size / ranks / chunks)
