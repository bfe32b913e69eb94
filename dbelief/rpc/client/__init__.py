"""Clients of shards and coordinator: calls, streams, shared buffers."""
