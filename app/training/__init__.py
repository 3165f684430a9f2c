"""Training data from the documents, and the training of adapters and rankers."""
