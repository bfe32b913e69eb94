"""What turns the state machine's effects into calls: event loop, executor, leader lease, shard client."""
