"""Training of adapters: examples, the model to train, and the training loop."""
