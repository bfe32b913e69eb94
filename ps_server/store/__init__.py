"""Storage of a shard: segments, update rules, duplicate detection, staleness barrier, limits."""
