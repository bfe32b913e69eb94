"""What a job would need, before anything of it is made: parameters, memory, messages between ranks, shards."""

from .network import NetworkPlan, plan_network
from .plan import Plan, make_plan
from .sums import Communication, Speeds

__all__ = ["Communication", "NetworkPlan", "Plan", "Speeds", "make_plan", "plan_network"]
