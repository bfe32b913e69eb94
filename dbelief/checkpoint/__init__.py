"""Snapshot sets and their files: a shard's segments, safetensors, JSON with a checksum."""
