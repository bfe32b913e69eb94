"""gRPC service of a shard: pull, push, exchange, and the same through shared memory."""
