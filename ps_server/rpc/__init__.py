"""A shard's gRPC service: pull, push, exchange, and the same through shared memory."""
