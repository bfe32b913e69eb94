"""What a shard holds: segments, the rules of their updates, duplicate detection, staleness, limits."""
