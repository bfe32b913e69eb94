"""Trackers of experiments: a run's curves, parameters, pictures and model, in the tools that people have.

`follow` reads the events of a run folder and gives them to sinks, one for each tracker.
"""
