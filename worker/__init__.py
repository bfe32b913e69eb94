"""A model replica: fetches parameters, computes gradients on leased data, pushes them."""
