"""OWL-QN: what an L1 penalty adds to L-BFGS, as operations on the vectors of the shards.

The objective is f(w) = loss(w) + l1 |w|_1. A step stays within one orthant, where |w|_1 is linear:

    v  = pseudo-gradient of f: of the directional derivatives of f, in each number, the one of the steepest descent
    d  = -H v, then 0 where its sign is not that of -v
    w' = w + t d, then 0 where its sign is not that of w, or where w is 0, of -v
    s  = w' - w;   y = gradient of the loss at w' less that at w, without the penalty

A number that reaches the border of the orthant becomes 0 exactly, and may leave it in a later iteration.

Numbers without a penalty are biases: tensors whose name is `bias` or ends in `.bias`. They follow L-BFGS, as the
intercept does in scikit-learn's `saga` and glmnet. So do tensors that are not trained.

Not taken: the direction is not aligned a second time after a projection, and the history is that of the loss alone, as
in the paper. Source: Andrew and Gao 2007, "Scalable training of L1-regularized log-linear models", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbelief.core.absent import Ranges, joined
from dbelief.core.layout import Kind, Layout
from dbelief.core.push import PARAMETERS, TRIAL
from dbelief.core.vector_program import Operation, dots, lincomb, norm1, opposed, orthant, pseudo

from .lbfgs import DIRECTION, GRADIENT

PSEUDO = "pseudo"


def unpenalised(layout: Layout) -> Ranges:
    """Ranges of the flat vector that no penalty applies to: biases, and what is not trained."""
    placed = zip(layout.boxes, layout.starts, strict=True)
    return joined(
        (start, start + box.size)
        for box, start in placed
        if box.kind is not Kind.TRAINED or box.name.rpartition(".")[2] == "bias"
    )


@dataclass
class OrthantPenalty:
    """The penalty, and the operations that keep a step within an orthant.

    Attributes
    ----------
    l1
        Factor of |w|_1, above 0.
    exempt
        Ranges of the flat vector without a penalty: see `unpenalised`.
    """

    l1: float
    exempt: Ranges = ()

    def norm(self) -> Operation:
        """|trial|_1."""
        return norm1(TRIAL, self.exempt)

    def pseudo_gradient(self) -> Operation:
        """The pseudo-gradient at the parameters, from the loss's gradient there."""
        return pseudo(PSEUDO, PARAMETERS, GRADIENT, self.l1, self.exempt)

    def align(self) -> Operation:
        """Remove from the direction what does not descend by itself."""
        return opposed(DIRECTION, PSEUDO, self.exempt)

    def project(self) -> Operation:
        """Keep the trial in the orthant that the direction points into."""
        return orthant(TRIAL, PARAMETERS, PSEUDO, self.exempt)

    def step_taken(self, name: str) -> list[Operation]:
        """The step to the trial, which the projection may have bent, as vector `name`; and its predicted change of f.

        Called before the trial becomes the parameters, so that the program may run twice.
        """
        return [lincomb(name, (1.0, TRIAL), (-1.0, PARAMETERS)), dots((PSEUDO, name))]
