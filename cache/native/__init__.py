"""C code for a model's passes on a CPU, for which Python is too slow."""
