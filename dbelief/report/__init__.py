"""What a run tells people, while it runs and afterwards: the live view, and the files of `runs/NAME/`."""
