"""What is done with jobs beside running one: benchmarks, experiments, replays and reports."""
