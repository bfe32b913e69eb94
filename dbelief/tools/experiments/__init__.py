"""Many runs of one job: sweeps over settings, comparisons of strategies."""
