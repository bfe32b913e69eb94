"""Simulation of a job's time at 10 to 100,000 replicas, by discrete events, from measured parts."""
