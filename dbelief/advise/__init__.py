"""Advice for a job from what it has measured: what bounds its speed, and what a change would bring."""
