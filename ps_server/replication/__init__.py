"""Replication and migration of a shard: the link to its follower, the journal's transfer, and migrating segments."""
