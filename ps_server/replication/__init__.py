"""A shard's copies elsewhere: the link to its follower, the journal's transfer, and segments that migrate."""
