"""Flower's app: a client and a server, as its quick start for PyTorch has them."""
