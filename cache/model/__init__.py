"""Language models: loading, families, adapters, and their forward pass over the KV pool."""
