"""Looking at a running job: the status client and its displays."""
