"""Quality of a set of parameters on data: loss, accuracy, and the metrics that a job names."""
