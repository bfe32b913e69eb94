"""The processes of `dbelief bench wire`: what a fork server imports for them, and the compiled loops that they use.

Dozens of processes are started. Each of its own would load these for one to two seconds.
"""

from dbelief.arrays import streaming_copy
from dbelief.optim import make_rule
from dbelief.optim.apply import warm_up

from . import baselines, workers  # noqa: F401

for _rule in ("adagrad", "elastic"):
    warm_up(make_rule(_rule, {}), streaming_copy.LARGE)
streaming_copy.warm_up()
