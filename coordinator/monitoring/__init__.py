"""Monitoring of a job: metrics, curves, throughput, stragglers, events, the status page."""
