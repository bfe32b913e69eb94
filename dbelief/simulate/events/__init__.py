"""The events of a simulation: an event loop in compiled code, over records of replicas, machines and servers."""
