"""A shard of a job: keeps its segments of the parameters, applies pushes by the rule, writes snapshots."""
