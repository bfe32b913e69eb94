"""Messages and stubs, made by `make protos` from `protos/`."""
