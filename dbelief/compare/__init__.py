"""Strategies compared: the same model, data, seeds and budget; time and samples to a fixed test accuracy."""
