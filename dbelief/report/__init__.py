"""What a run shows people afterwards: its text report and its pictures."""
