"""Sparse tables of a shard: rows by key, in arenas with a hash index."""
