"""RPC layer: generated messages, channels, servers, clients of shards and coordinator. The only package using gRPC."""
