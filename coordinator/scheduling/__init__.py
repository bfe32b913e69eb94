"""Who computes what: leases of data, evaluations, and the synchronisation of replicas."""
