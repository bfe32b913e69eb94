"""Sum of one vector over all ranks, by a tree, a parameter server or a ring.

    way        messages from a rank, the most    bytes from a rank, the most   seconds, unchunked
    server     P - 1                             (P - 1) n                     2 (P - 1) (alpha + n beta)
    binomial   ceil(log2 P)                      ceil(log2 P) n                2 ceil(log2 P) (alpha + n beta)
    ring       2 (P - 1)                         2 (P - 1) / P n               2 (P - 1) (alpha + n / P beta)

for P ranks and n bytes, where a message of m bytes takes alpha + m beta seconds, and a rank's link transfers one at a
time in each direction (`dbelief.core.reduction_tree`). The first two are FireCaffe's (Iandola et al. 2016, section 6):
a parameter server is a tree of height 1. `Communicator.allreduce` sends a ring's bytes too, but each piece directly to
the rank that adds it. It therefore adds in rank order, with the bits of a loop over the ranks, and holds P pieces at a
time.

All of them are deterministic for one P, one size and one way, and all ranks end with the same bits. Only the ring's
order of adding depends on the position in the vector. With a tree or a server, summing layer by layer gives the same
bits as summing all layers packed into one vector; with a ring it does not.
"""

from .allreduce import Allreduce
from .ring import RingAllreduce
from .tree import TreeAllreduce

__all__ = [
    "Allreduce",
    "RingAllreduce",
    "TreeAllreduce",
]
