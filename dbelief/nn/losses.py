"""Losses: the sum over a batch forward, the gradient of the mean backward.

Both halves share one buffer `slope`, shaped as the outputs: `forward` leaves in it what `backward` turns into
dL/doutputs, where L is the MEAN loss over the m samples of the batch.
"""

from typing import Any, ClassVar, Protocol

from dbelief.errors import DataError, ModelError

from .model import Array
from .workspace import Workspace


class Loss(Protocol):
    """What a network asks of a loss."""

    @property
    def name(self) -> str:
        """Its name in a job file."""
        ...

    def outputs(self, classes: int) -> int:
        """Outputs of the last layer for so many classes.

        Raises
        ------
        ModelError
            It is not for so many.
        """
        ...

    def by_class(self, work: Workspace, outputs: Array) -> Array:
        """Outputs with one for each class, as predictions and metrics read them."""
        ...

    def check(self, outputs: int, targets: Array) -> None:
        """Check targets against the number of outputs per sample.

        Raises
        ------
        ModelError
            Shape or kind of number is not what this loss takes.
        DataError
            A value is outside its range.
        """
        ...

    def forward(self, work: Workspace, outputs: Array, targets: Array, slope: Array) -> Array:
        """Give the SUM of the samples' losses as a scalar of xp (not waited for on a device)."""
        ...

    def backward(self, work: Workspace, targets: Array, slope: Array) -> None:
        """Turn what `forward` left in `slope` into the gradient of the mean loss, in place."""
        ...

    def right(self, work: Workspace, outputs: Array, targets: Array) -> int | None:
        """Count the right answers; None where the loss knows none."""
        ...

    def log_probabilities(self, work: Workspace, outputs: Array) -> Array:
        """Give log p of each class, shaped as the outputs, in a buffer.

        Raises
        ------
        ModelError
            The loss knows no classes.
        """
        ...


class ClassLoss:
    """What losses with integer targets have in common."""

    name: ClassVar[str]

    def outputs(self, classes: int) -> int:
        """One for each class."""
        return classes

    def by_class(self, work: Workspace, outputs: Array) -> Array:
        """As they are."""
        return outputs

    def check(self, outputs: int, targets: Array) -> None:
        """Targets are integers of shape (m,), each in 0 ... outputs - 1."""
        if targets.ndim != 1 or targets.dtype.kind not in "iu":
            shape = targets.shape
            raise ModelError(f"loss {self.name}: got targets {targets.dtype} of shape {shape}, expected integers (m,)")
        # Read as unsigned, a negative number is a huge one: one reduction finds both ends.
        highest = int(targets.view(f"u{targets.dtype.itemsize}").max())
        if highest >= outputs:
            found = f"{int(targets.min())}..{int(targets.max())}"
            raise DataError(f"loss {self.name}: targets lie in {found}, expected 0..{outputs - 1}")

    def right(self, work: Workspace, outputs: Array, targets: Array) -> int:
        """Count the samples whose largest output is their class; of equal ones the first counts."""
        return int(work.xp.count_nonzero(work.xp.argmax(outputs, axis=1) == targets))


class SoftmaxCrossEntropy(ClassLoss):
    """With integer targets t: loss = -log p_t, p = exp(z - max z) / sum exp(z - max z).

    d mean / dz = (p - onehot(t)) / m. Subtracting the maximum keeps every exponent at or below 0.
    """

    name: ClassVar[str] = "softmax_cross_entropy"

    def forward(self, work: Workspace, outputs: Array, targets: Array, slope: Array) -> Array:
        """Leave p in `slope`."""
        xp, m = work.xp, len(outputs)
        rowwise = work.array("loss.rowwise", (m,), outputs.dtype)
        xp.max(outputs, axis=1, out=rowwise)
        xp.subtract(outputs, rowwise[:, None], out=slope)
        chosen = slope[work.rows(m), targets]
        xp.exp(slope, out=slope)
        xp.sum(slope, axis=1, out=rowwise)
        xp.divide(slope, rowwise[:, None], out=slope)
        xp.log(rowwise, out=rowwise)
        xp.subtract(rowwise, chosen, out=rowwise)
        return xp.sum(rowwise, dtype=xp.float64)

    def backward(self, work: Workspace, targets: Array, slope: Array) -> None:
        """Write (p - onehot(t)) / m."""
        slope[work.rows(len(slope)), targets] -= 1
        work.xp.divide(slope, len(slope), out=slope)

    def log_probabilities(self, work: Workspace, outputs: Array) -> Array:
        """Give log p = z - max z - log of the sum of exp(z - max z)."""
        xp = work.xp
        logs, terms = (work.array(name, outputs.shape, outputs.dtype) for name in ("loss.logs", "loss.terms"))
        xp.subtract(outputs, xp.max(outputs, axis=1, keepdims=True), out=logs)
        xp.exp(logs, out=terms)
        xp.subtract(logs, xp.log(xp.sum(terms, axis=1, keepdims=True)), out=logs)
        return logs


class OneVsAll(ClassLoss):
    """One logistic regression per class, with integer targets t (Dean et al. 2012, section 5).

    loss = sum over k of log(1 + exp(u_k)), u = z but for u_t = -z_t; d mean / dz = sigmoid(u) / m, but for class t
    -sigmoid(u_t) / m. log(1 + exp(u)) = max(u, 0) + log(1 + exp(-|u|)), whose exponent is never above 0.
    """

    name: ClassVar[str] = "one_vs_all"

    def forward(self, work: Workspace, outputs: Array, targets: Array, slope: Array) -> Array:
        """Leave sigmoid(u) = (1 + tanh(u / 2)) / 2 in `slope`."""
        xp = work.xp
        terms = work.array("loss.terms", outputs.shape, outputs.dtype)
        xp.copyto(slope, outputs)
        slope[work.rows(len(slope)), targets] *= -1
        _log1p_exp(xp, slope, terms)
        total = xp.sum(terms, dtype=xp.float64)
        xp.maximum(slope, 0, out=terms)
        total = total + xp.sum(terms, dtype=xp.float64)
        xp.multiply(slope, 0.5, out=slope)
        xp.tanh(slope, out=slope)
        xp.add(slope, 1.0, out=slope)
        xp.multiply(slope, 0.5, out=slope)
        return total

    def backward(self, work: Workspace, targets: Array, slope: Array) -> None:
        """Write sigmoid(u) / m, with the other sign for each sample's class."""
        slope[work.rows(len(slope)), targets] *= -1
        work.xp.divide(slope, len(slope), out=slope)

    def log_probabilities(self, work: Workspace, outputs: Array) -> Array:
        """Give log sigmoid(z) = min(z, 0) - log(1 + exp(-|z|)): each class by itself, against all others."""
        xp = work.xp
        logs, terms = (work.array(name, outputs.shape, outputs.dtype) for name in ("loss.logs", "loss.terms"))
        _log1p_exp(xp, outputs, terms)
        xp.minimum(outputs, 0, out=logs)
        xp.subtract(logs, terms, out=logs)
        return logs


class Logistic(ClassLoss):
    """Logistic regression of two classes by one output z, with integer targets t: class 1 has probability sigmoid(z).

    loss = log(1 + exp(u)), u = z for class 0 and -z for class 1; d mean / dz = (sigmoid(z) - t) / m. It is the loss of
    softmax with the outputs (0, z), as which predictions and metrics read them.
    """

    name: ClassVar[str] = "logistic"

    def outputs(self, classes: int) -> int:
        """One, for two classes."""
        if classes != 2:
            raise ModelError(f"loss {self.name}: is for two classes, and the data has {classes}")
        return 1

    def by_class(self, work: Workspace, outputs: Array) -> Array:
        """Give (0, z) of each sample, in a buffer."""
        both = work.array("loss.both", (len(outputs), 2), outputs.dtype)
        both[:, 0] = 0
        both[:, 1] = outputs[:, 0]
        return both

    def check(self, outputs: int, targets: Array) -> None:
        """Targets are integers of shape (m,), each 0 or 1."""
        super().check(2, targets)

    def forward(self, work: Workspace, outputs: Array, targets: Array, slope: Array) -> Array:
        """Leave sigmoid(z) in `slope`."""
        xp = work.xp
        u, terms = (work.array(name, outputs.shape, outputs.dtype) for name in ("loss.u", "loss.terms"))
        xp.multiply(targets[:, None], -2, out=u)
        xp.add(u, 1, out=u)
        xp.multiply(u, outputs, out=u)
        _log1p_exp(xp, u, terms)
        total = xp.sum(terms, dtype=xp.float64)
        xp.maximum(u, 0, out=terms)
        total = total + xp.sum(terms, dtype=xp.float64)
        xp.multiply(outputs, 0.5, out=slope)
        xp.tanh(slope, out=slope)
        xp.add(slope, 1.0, out=slope)
        xp.multiply(slope, 0.5, out=slope)
        return total

    def backward(self, work: Workspace, targets: Array, slope: Array) -> None:
        """Write (sigmoid(z) - t) / m."""
        work.xp.subtract(slope, targets[:, None], out=slope)
        work.xp.divide(slope, len(slope), out=slope)

    def right(self, work: Workspace, outputs: Array, targets: Array) -> int:
        """Count the samples whose class is 1 where z is above 0, and 0 else."""
        return int(work.xp.count_nonzero((outputs[:, 0] > 0) == targets))

    def log_probabilities(self, work: Workspace, outputs: Array) -> Array:
        """Give log sigmoid(-z) and log sigmoid(z)."""
        return SoftmaxCrossEntropy().log_probabilities(work, self.by_class(work, outputs))


def _log1p_exp(xp: Any, u: Array, out: Array) -> None:
    """Write log(1 + exp(-|u|))."""
    xp.abs(u, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)


class SquareLoss:
    """With targets t of shape (m, k): loss = ||y - t||^2 / 2 per sample. d mean / dy = (y - t) / m."""

    name: ClassVar[str] = "square"

    def outputs(self, classes: int) -> int:
        """One for each number of a target."""
        return classes

    def by_class(self, work: Workspace, outputs: Array) -> Array:
        """As they are."""
        return outputs

    def check(self, outputs: int, targets: Array) -> None:
        """Targets are floating point of shape (m, outputs)."""
        if targets.ndim != 2 or targets.shape[1] != outputs or targets.dtype.kind != "f":
            raise ModelError(
                f"loss {self.name}: got targets {targets.dtype} of shape {targets.shape}, "
                f"expected floats (m, {outputs})"
            )

    def forward(self, work: Workspace, outputs: Array, targets: Array, slope: Array) -> Array:
        """Leave y - t in `slope`."""
        work.xp.subtract(outputs, targets, out=slope)
        return 0.5 * work.xp.vdot(slope, slope)

    def backward(self, work: Workspace, targets: Array, slope: Array) -> None:
        """Write (y - t) / m."""
        work.xp.divide(slope, len(slope), out=slope)

    def right(self, work: Workspace, outputs: Array, targets: Array) -> int | None:
        """Without classes no answer is right or wrong."""
        return None

    def log_probabilities(self, work: Workspace, outputs: Array) -> Array:
        """Refuse: there are no classes."""
        raise ModelError(f"loss {self.name}: knows no classes, and so no probabilities of them")
