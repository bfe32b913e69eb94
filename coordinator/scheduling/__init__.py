"""Scheduling: leases of data, evaluations, and the synchronisation of replicas."""
