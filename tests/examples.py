"""How many examples a test draws that says so itself: a share of them in `make test`, all in `make test-long`."""

from hypothesis import settings

USUAL = 100
"""What Hypothesis draws where nothing is said; the profile's number over this one is the share."""


def examples(most: int) -> settings:
    """At most so many examples, of the profile's share."""
    return settings(max_examples=max(1, most * settings().max_examples // USUAL))
