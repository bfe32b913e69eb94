"""Snapshot sets and the files in them: a shard's segments, safetensors, JSON with a checksum."""
