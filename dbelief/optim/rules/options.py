"""Ranges of the rules' options."""

import math


def at_least_zero(rule: str, **options: float) -> None:
    """Raise ValueError unless every option is finite and at least 0."""
    for option, value in options.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{rule}: {option} is {value}, must be 0 or more")


def below_one(rule: str, **options: float) -> None:
    """Raise ValueError unless every option is at least 0 and below 1."""
    for option, value in options.items():
        if not 0 <= value < 1:
            raise ValueError(f"{rule}: {option} is {value}, must be at least 0 and below 1")
