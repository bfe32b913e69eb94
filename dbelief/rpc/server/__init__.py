"""gRPC servers: authentication, health, handler threads."""
