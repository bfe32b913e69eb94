"""Concurrent parts of a replica: fetch and push threads, buffers, and batches."""
