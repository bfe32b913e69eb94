"""The wire: generated messages, channels, servers, and the clients of shards and coordinator. Only door to gRPC."""
