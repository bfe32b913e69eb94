"""Clients of shards and coordinator: calls, streams and their watchdog, shared buffers."""
