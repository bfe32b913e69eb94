"""Block-local sparse autoencoders (Coates et al. 2013): one layer, and stacks of them as one model."""
