"""How long a sum over the ranks takes on links that carry one message at a time in each direction.

A message of m bytes takes T(m) = alpha + beta m seconds (You et al. 2017, section 5.2); adding takes none. In `chunks`
parts, the first one goes the whole way, and each further one follows when the busiest link is done with the one before:

    tree    (up + down) T(n / K) + (K - 1) busiest T(n / K)      rounds and busiest: of the `Shape`
    ring    2 (P - 1) K T(n / P K)

With one chunk, and alpha = 0, the server takes 2 (P - 1) n beta, which is FireCaffe's Eq. 3 (|W| p / BW) for p = P - 1
workers, once for each direction: what comes in is summed before anything goes out. In many chunks both directions
overlap, and Eq. 3 is what is left. A binomial tree takes 2 ceil(log2 P) n beta, FireCaffe's Eq. 4 for powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbelief.core.reduction_tree import Shape


@dataclass(frozen=True)
class Link:
    """What lies between any two ranks.

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
        """A message of so many bytes."""
        return self.alpha_s + self.beta_s * size


def tree_seconds(tree: Shape, size: float, link: Link, chunks: int = 1) -> float:
    """A `TreeAllreduce` of `size` bytes."""
    messages = tree.rounds_up() + tree.rounds_down() + (chunks - 1) * tree.busiest
    return messages * link.seconds(size / chunks) if tree.ranks > 1 else 0.0


def ring_seconds(ranks: int, size: float, link: Link, chunks: int = 1) -> float:
    """A `RingAllreduce` of `size` bytes, each piece in so many chunks."""
    return 2 * (ranks - 1) * chunks * link.seconds(size / ranks / chunks)


def shards_seconds(
    replicas: int, shards: int, sizes: tuple[float, float], link: Link, *, fetches: float, pushes: float, in_step: bool
) -> float:
    """The least time of a mini-batch of each replica, where all fetch and push through sharded servers.

    Each shard has its share of the bytes of a fetch and of a push (`sizes`), and one link of its own; each replica
    fetches and pushes so many times in a mini-batch. In step, a fetch is after all pushes; else the two directions are
    busy at the same time, and the busier one is the limit.
    """
    sharing = max(replicas / shards, 1) * link.beta_s
    once = [times * (link.alpha_s + sharing * size) for times, size in zip((fetches, pushes), sizes, strict=True)]
    return sum(once) if in_step else max(once)
