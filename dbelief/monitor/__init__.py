"""Monitoring of a running job: the status client and its displays."""
