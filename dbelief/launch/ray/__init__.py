"""A job on a Ray cluster: the launcher is a driver of it, and each shard and worker a named actor (`--on ray`)."""
