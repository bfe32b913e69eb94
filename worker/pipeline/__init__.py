"""Concurrent parts of a replica: fetch and push threads, buffers, batches and measured phases."""
