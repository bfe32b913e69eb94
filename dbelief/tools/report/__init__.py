"""Report of a run: its text report and its plots."""
