"""What a job would need, before anything of it is made: parameters, memory, messages between ranks, shards."""

from .plan import Plan, make_plan

__all__ = ["Plan", "make_plan"]
