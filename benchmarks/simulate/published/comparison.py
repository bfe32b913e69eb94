"""A paper's values beside those of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """One value.

    Attributes
    ----------
    method, x
        Its curve, and its place on the horizontal axis.
    paper
        The paper's value; None where the paper has none in words or numbers.
    simulated
        The simulation's.
    source
        Where the paper has it.
    fitted
        Whether an assumption was set so that this value fits: it says nothing about the simulation.
    """

    method: str
    x: float
    paper: float | None
    simulated: float
    source: str = ""
    fitted: bool = False

    @property
    def ratio(self) -> float | None:
        """Simulated over the paper's."""
        return None if self.paper is None else self.simulated / self.paper


@dataclass(frozen=True)
class Claim:
    """What a paper says in words.

    Attributes
    ----------
    text, source
        What it says, and where.
    holds
        Whether the simulation has it.
    note
        Why it does not, or which assumption decides it.
    assumed
        Whether an assumption on something that is not simulated decides it: it says little about the simulation.
    """

    text: str
    source: str
    holds: bool
    note: str = ""
    assumed: bool = False


@dataclass(frozen=True)
class Comparison:
    """A paper's curves beside those of the simulation.

    Attributes
    ----------
    name, paper
        Of the comparison, for `--only`; of the paper.
    x, value
        What the axes are, with units.
    points, claims
        Values; statements in words.
    assumed, left_out
        What the paper does not state; what of it is not simulated, and why.
    log
        Whether the vertical axis is logarithmic.
    """

    name: str
    paper: str
    x: str
    value: str
    points: Sequence[Point]
    claims: Sequence[Claim] = ()
    assumed: Sequence[str] = ()
    left_out: Sequence[str] = ()
    log: bool = False

    @property
    def predicted(self) -> list[Point]:
        """Points with a value of the paper that nothing was fitted to."""
        return [point for point in self.points if point.paper is not None and not point.fitted]

    @property
    def orders(self) -> tuple[int, int]:
        """Pairs of methods at one x that are in the paper's order, and all pairs that the paper has in an order."""
        same = pairs = 0
        for number, one in enumerate(self.points):
            for other in self.points[number + 1 :]:
                if one.paper is None or other.paper is None or one.x != other.x or one.paper == other.paper:
                    continue
                pairs += 1
                same += (one.paper < other.paper) == (one.simulated < other.simulated)
        return same, pairs

    def largest(self) -> tuple[Point, float] | None:
        """The point that is furthest from the paper's, and by which factor of 1 and more."""
        found = [(point, max(point.ratio, 1 / point.ratio)) for point in self.predicted if point.ratio]
        return max(found, key=lambda one: one[1]) if found else None

    def within(self, share: float) -> int:
        """Predicted points whose ratio is at most so much away from 1."""
        return sum(abs(point.ratio - 1) <= share for point in self.predicted if point.ratio is not None)

    def summary(self) -> str:
        """One paragraph: claims, orders, the largest ratio."""
        parts = []
        if self.claims:
            by = sum(claim.holds and claim.assumed for claim in self.claims)
            decided = f", {by} of them by an assumption" if by else ""
            parts.append(f"{sum(claim.holds for claim in self.claims)} of {len(self.claims)} statements hold{decided}")
        same, pairs = self.orders
        if pairs:
            parts.append(f"{same} of {pairs} pairs of methods are in the paper's order")
        worst = self.largest()
        if worst is not None:
            point, factor = worst
            parts.append(f"{self.within(0.1)} of {len(self.predicted)} predicted values are within 10 %")
            parts.append(f"the largest factor is {factor:.2f}, of {point.method} at {point.x:g}")
        return "; ".join(parts)

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        same, pairs = self.orders
        worst = self.largest()
        return {
            **asdict(self),
            "points": [{**asdict(point), "ratio": point.ratio} for point in self.points],
            "summary": {
                "text": self.summary(),
                "pairs_in_order": same,
                "pairs": pairs,
                "predicted": len(self.predicted),
                "within_10_percent": self.within(0.1),
                "largest_factor": None if worst is None else worst[1],
            },
        }
