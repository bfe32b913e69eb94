"""Resource estimates of a job, before it is built: parameters, memory, messages between ranks, shards."""

from .communication_cost import Communication, Speeds
from .job_plan import Plan, make_plan
from .network import NetworkPlan, plan_network

__all__ = ["Communication", "NetworkPlan", "Plan", "Speeds", "make_plan", "plan_network"]
