"""Resource estimates of a job, before it is built: parameters, memory, messages between ranks, shards."""

from .communication_cost import Communication
from .job_plan import Plan, make_plan
from .network import NetworkPlan, plan_network
from .sized_plan import SizedPlan, plan_sized
from .speeds import Speeds

__all__ = [
    "Communication",
    "NetworkPlan",
    "Plan",
    "SizedPlan",
    "Speeds",
    "make_plan",
    "plan_network",
    "plan_sized",
]
