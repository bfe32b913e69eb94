"""The coordinator's gRPC service and its status reply."""
