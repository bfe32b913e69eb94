"""A parameter-server shard: stores its segments of the parameters, applies pushes by the rule, writes snapshots."""
