"""The update rules themselves, each by its formula and by a compiled loop."""
