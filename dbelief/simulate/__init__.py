"""Simulation of a job: its time at 10 to 100,000 replicas by discrete events, and its training with their delays."""
