"""Language models: loading, families, adapters, and their forward pass over an arena."""
