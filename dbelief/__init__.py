"""dbelief trains gradient-based models on machines that are slow, mixed, far apart, or may vanish."""
