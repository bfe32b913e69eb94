"""Files of `runs/NAME/`: events, summary, records of pushes, the resulting model."""
