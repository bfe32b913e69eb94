"""A cluster of Kubernetes in the test's process: kmock's API server, controllers, and pods that are processes."""
