"""What a job would need, before anything of it is made: parameters, memory, messages between ranks, shards."""

from .communication_cost import Communication, Speeds
from .job_plan import Plan, make_plan
from .network import NetworkPlan, plan_network

__all__ = ["Communication", "NetworkPlan", "Plan", "Speeds", "make_plan", "plan_network"]
