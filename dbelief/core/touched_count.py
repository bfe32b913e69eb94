"""How many numbers of a model a bundle of sparse rows touches, and whether these travel alone."""

from __future__ import annotations

POSITION_BYTES, NUMBER_BYTES = 8, 4
TOUCHED_BYTES = POSITION_BYTES + NUMBER_BYTES
"""On the wire, for each touched number, in either direction."""


def touched_count(part: int, tensor: int, rows: int, numbers: float) -> float | None:
    """The most numbers that a bundle is expected to touch; None where whole vectors cost less to send.

    Both ways give the same bits, so each replica chooses by itself.

    Parameters
    ----------
    part
        Numbers of the model.
    tensor, rows
        Numbers of the tensor whose rows belong to columns of the inputs, and its rows.
    numbers
        Numbers of the samples of a bundle.
    """
    touched = min(tensor, tensor // rows * numbers) + part - tensor
    return touched if TOUCHED_BYTES * touched < NUMBER_BYTES * part else None
