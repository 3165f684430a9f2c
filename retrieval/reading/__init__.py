"""Finding files, and reading them in a process of their own."""
