"""Code in C for what Python is too slow for: passes through a model on a processor."""
