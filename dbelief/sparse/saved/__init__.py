"""Rows of tables outside of shards: out of snapshot sets, in files, and read by key."""
