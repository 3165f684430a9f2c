"""Training of adapters: examples, the model that reads them, and the training loop."""
