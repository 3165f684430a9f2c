"""One packed forward pass over the KV pool: work items, kernels, and effects of the distance between tokens."""
