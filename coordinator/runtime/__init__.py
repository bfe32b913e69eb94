"""Execution of the state machine's effects: event loop, executor, leader lease, shard client."""
