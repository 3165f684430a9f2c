"""Training data of a desk, and the training of an adapter."""
