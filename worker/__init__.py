"""Model replica process: fetches parameters, computes gradients on leased data and pushes them."""
