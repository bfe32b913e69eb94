"""Measures of logits, of labels or of true probabilities of clicks: then they are the means over all labels.

With p_i the probability of a click of sample i (of a label 0 or 1), the AUC is

    sum over i != j of p_i (1 - p_j) [s_i > s_j], over the same sum without [...]; ties count half

No scores have a greater one than the true probabilities themselves, whose AUC is the Bayes AUC of these samples: for
any pair, [p_i > p_j] chooses the larger one of p_i (1 - p_j) and p_j (1 - p_i).
"""

from __future__ import annotations

import numpy as np


def auc(scores: np.ndarray, clicks: np.ndarray) -> float:
    """Area under the ROC curve, in float64.

    Parameters
    ----------
    scores : floats, shape (n,)
        Logits, or anything that rises with them.
    clicks : floats, shape (n,)
        Labels 0 and 1, or probabilities.

    Returns
    -------
    float
        NaN where there is no pair.
    """
    order = np.argsort(scores)
    ordered, p = scores[order], clicks[order].astype(np.float64)
    q = 1 - p
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    clicked, others = np.add.reduceat(p, firsts), np.add.reduceat(q, firsts)
    itself = p @ q
    above = clicked @ (np.cumsum(others) - others / 2) - itself / 2
    pairs = p.sum() * q.sum() - itself
    return float(above / pairs) if pairs > 0 else float("nan")


def log_loss(logits: np.ndarray, clicks: np.ndarray) -> float:
    """Mean of the negative logarithm of the probability of what happened, in nats."""
    wide = logits.astype(np.float64)
    return float((np.logaddexp(0, wide) - clicks * wide).mean())


def accuracy(logits: np.ndarray, clicks: np.ndarray) -> float:
    """Share of samples whose likelier outcome happened, 0 to 1; a logit of 0 counts as no click."""
    return float(np.where(logits > 0, clicks, 1 - clicks).mean(dtype=np.float64))
