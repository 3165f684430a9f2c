"""One packed forward pass over the arena: work items, kernels, and what distance does."""
